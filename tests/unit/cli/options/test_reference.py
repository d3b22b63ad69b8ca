"""docs/configuration.md is what the program's own table says."""

import re
from pathlib import Path

from deadpool.cli.options.reference import reference
from deadpool.cli.options.settings import SETTINGS

ROOT = Path(__file__).parents[4]


def test_the_file_is_the_generated_one() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text() == reference(), (
        "run: python -m deadpool.cli.options.reference > docs/configuration.md"
    )


def test_the_readme_names_options_that_there_are_and_refers_to_the_rest() -> None:
    readme = (ROOT / "README.md").read_text()
    named = re.findall(r"^\| `--([a-z-]+)", readme, re.MULTILINE)
    assert named
    assert set(named) <= {setting.name for setting in SETTINGS}
    assert len(named) <= 10
    assert "docs/configuration.md" in readme


def test_every_time_says_its_unit_and_what_it_costs_or_decides() -> None:
    for setting in SETTINGS:
        assert setting.field.endswith("_s") == (setting.unit == "s"), setting.name
        assert setting.help.endswith("."), setting.name
