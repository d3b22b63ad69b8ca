"""The table in docs/compatibility.md: every cell is filled, and every test that it names is there."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TypeGuard

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "compatibility.md"
COLUMNS = ("unhooked", "hooked lines", "kill-node", "kill-rank", "drain", "resume from disk")
NAME = re.compile(r"`([\w/]+\.py::\w+(?:\[[^`]+\])?)`")
REFUSED = "refused: "  # and why


def cells() -> dict[tuple[str, str], str]:
    """Returns what each cell says, by its row's and its column's name."""
    lines = PAGE.read_text().partition("## By which test")[2].splitlines()
    head, rule, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")]
    assert [cell.strip("| ") for cell in head if cell.strip("| ")] == list(COLUMNS)
    assert rule
    assert rows
    assert {len(row) for row in rows} == {1 + len(COLUMNS)}, "a row has a cell too many, or too few"
    return {(row[0], column): text for row in rows for column, text in zip(COLUMNS, row[1:], strict=True)}


def known_in(files: set[str]) -> tuple[set[str], set[str]]:
    """Returns the tests in these files as the table names them, with their parameters and without; and those in files that are
    skipped because a framework is not installed: these are read, and their parameters not known.
    """
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "long or not long"]
    done = subprocess.run([*command, *sorted(files)], cwd=TESTS, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode in (0, pytest.ExitCode.NO_TESTS_COLLECTED), done.stdout + done.stderr
    found = {line.removeprefix("tests/") for line in done.stdout.splitlines() if line.startswith("tests/") and "::" in line}
    skipped = files - {name.partition("::")[0] for name in found}
    read = {f"{file}::{node.name}" for file in skipped for node in ast.parse((TESTS / file).read_text()).body if is_test(node)}
    return found | {name.partition("[")[0] for name in found}, read


def is_test(node: ast.stmt) -> TypeGuard[ast.FunctionDef]:
    return isinstance(node, ast.FunctionDef) and node.name.startswith("test_")


def test_no_cell_is_empty() -> None:
    for where, text in cells().items():
        named = NAME.findall(text)
        rest = re.sub(r"[\s,]", "", NAME.sub("", text))
        refused = text.startswith(REFUSED) and len(text) > len(REFUSED)
        assert (named and not rest) or refused, f"{where}: {text!r}"


@pytest.mark.timeout(120)
def test_every_test_that_is_named_is_there() -> None:
    named = set(NAME.findall(PAGE.read_text()))
    collected, read = known_in({name.partition("::")[0] for name in named})
    assert not {name for name in named if name not in collected and name.partition("[")[0] not in read}
