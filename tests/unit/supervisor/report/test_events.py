"""The table of events: every event that the program can give is in it with its fields, and docs/events.md is what it says."""

import ast
from pathlib import Path

import pytest

import deadpool
from deadpool.supervisor.report.events import EVENTS, misfit, reference

PACKAGE = Path(deadpool.__file__).parent
ROOT = Path(__file__).parents[4]


def noted() -> dict[str, list[set[str]]]:
    """Returns the fields that each call of note() in the supervisor gives, by the event."""
    found: dict[str, list[set[str]]] = {}
    for path in sorted(PACKAGE.joinpath("supervisor").resolve().rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "note":
                fields = {each.arg for each in node.keywords if each.arg is not None}
                names = [each.value for each in ast.walk(node.args[0]) if isinstance(each, ast.Constant)] if node.args else []
                for name in names:
                    found.setdefault(str(name), []).append(fields)
    return found


NOT_NOTED = {  # the supervisor's shell says these
    "journal_unwritable", "journal_written_again", "relay_opened", "relay_closed", "clocks_differ",
}  # fmt: skip


def test_the_table_has_every_event_and_no_other() -> None:
    assert noted().keys() | NOT_NOTED == EVENTS.keys()


@pytest.mark.parametrize("name", sorted(EVENTS.keys() - NOT_NOTED))
def test_every_call_gives_the_fields_of_its_event(name: str) -> None:
    kind = EVENTS[name]
    for fields in noted()[name]:
        assert kind.fields.keys() <= fields <= kind.fields.keys() | kind.sometimes.keys()


def test_the_docs_are_the_generated_ones() -> None:
    assert (ROOT / "docs" / "events.md").read_text() == reference(), (
        "run: python -m deadpool.supervisor.report.events > docs/events.md"
    )


@pytest.mark.parametrize(
    ("event", "fields", "says"),
    [
        ("started", {}, ""),
        ("plan", {"resume_step": 3, "sources": {"live": 2}, "reason": "x"}, ""),
        ("generation", {"reason": "x", "members": ["node0"], "from_scratch": True}, ""),
        ("sunrise", {}, "not in the table"),
        ("plan", {"resume_step": 3}, "reason, sources missing"),
        ("started", {"rank": 1}, "rank not in the table"),
        ("hooked", {"rank": True}, "rank = True is no whole number"),
        ("drain", {"node": "node0", "reason": "", "ranks": ["0"]}, "no list of ranks"),
        ("node_lost", {"node": 1, "reason": ""}, "node = 1 is no text"),
    ],
)
def test_what_does_not_fit_is_named(event: str, fields: dict[str, object], says: str) -> None:
    found = misfit(event, fields)
    assert says in found if says else not found
