"""The pages for users are true: commands can be given, links lead somewhere, and the lines that they quote are said."""

import importlib.util
import re
import shlex
from pathlib import Path

import click
import pytest

from deadpool.cli.launch import launch
from deadpool.cli.main import commands

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("*.md")])
ROOMS = ("agent", "cli", "deploy", "host", "integrations", "proto", "supervisor", "trainer_hooks")
PROGRAMS = {"deadpool": commands, "deadpool-launch": launch}


def commands_of(page: Path) -> list[str]:
    """Returns the lines in this page's blocks that call one of our programs, without what the shell adds."""
    blocks = re.findall(r"^```console\n(.*?)^```$|((?:^    .+\n)+)", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in "".join(block).splitlines()]
    return [re.split(r"\s+#|\s+>|\s{3,}", line)[0] for line in lines if line.split(" ")[0] in PROGRAMS]


COMMANDS = sorted({(page.name, line) for page in PAGES for line in commands_of(page)})


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=[f"{page}: {line}" for page, line in COMMANDS])
def test_a_command_in_the_pages_is_one_that_there_is(page: str, line: str) -> None:
    program, *words = shlex.split(line)
    try:
        parse(PROGRAMS[program], program, words)
    except click.UsageError as error:
        if "does not exist" not in error.format_message():  # a file of the reader's
            pytest.fail(f"{page}: {line}: {error.format_message()}")


def parse(command: click.Command, name: str, words: list[str]) -> None:
    """Reads the words as the program would. click.UsageError: it would refuse them. Nothing is run."""
    context = command.make_context(name, words)
    if isinstance(command, click.Group):
        inner_name, inner, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert inner is not None
        parse(inner, inner_name or "", rest)


def test_there_are_commands_in_the_pages() -> None:
    assert len(COMMANDS) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_leads_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(#[^)]*)?\)", page.read_text()):
        there = page.parent / target if target else page
        assert there.exists(), f"{page.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
            assert anchor[1:] in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, anchor


def test_every_page_is_found_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    missing = [page.name for page in DOCS.glob("*.md") if f"docs/{page.name}" not in readme]
    assert not missing


def test_the_lines_in_troubleshooting_are_lines_of_the_program() -> None:
    said = "".join("".join(file.read_text() for file in (ROOT / room).rglob("*.py")) for room in ROOMS)
    said = re.sub(r'"\s*\n\s*f?"', "", said)  # a text that goes over several lines
    page = (DOCS / "troubleshooting.md").read_text()
    quoted = [line for cell in re.findall(r"^\| (`[^|]*`) \|", page, re.MULTILINE) for line in re.findall(r"`([^`]+)`", cell)]
    assert len(quoted) > 15
    assert not [line for line in quoted if line not in said]


def test_the_api_page_is_made_from_the_docstrings() -> None:
    spec = importlib.util.spec_from_file_location("api_reference", DOCS / "api_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (DOCS / "api.md").read_text() == module.reference(), "run: python docs/api_reference.py > docs/api.md"
