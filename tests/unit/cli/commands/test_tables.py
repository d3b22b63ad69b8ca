"""The JSON of `deadpool status` is spelt as the summary's; an event is one line."""

import io
from typing import Any

import pytest
from rich.console import Console
from statuses import job, thousand

from deadpool.cli.commands import tables
from deadpool.proto.convert import status_as_plain


def test_json_spells_the_class_as_the_summary_does() -> None:
    plain = status_as_plain(job())
    assert plain["recoveries"][0]["class"] == "permanent"
    assert "failure_class" not in plain["recoveries"][0]
    first = plain["nodes"][2]["ranks"][1]
    assert {key: first[key] for key in ("rank", "pid", "step", "wait_s")} == {"rank": 3, "pid": 1003, "step": 16, "wait_s": 0.06}


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"time": "12:00", "event": "started", "generation": 1, "caused_by": "3 Heartbeat"}, "12:00  g1  started"),
        ({"time": "12:00", "event": "plan", "generation": 2, "resume_step": 5}, "12:00  g2  plan  resume_step=5"),
        ({}, "  g?  ?"),
    ],
)
def test_an_event_is_one_line(event: dict[str, Any], line: str) -> None:
    assert tables.event_line(event).plain == line


def test_an_event_is_shown_with_what_it_says_and_as_many_digits_as_a_person_reads() -> None:
    event = {
        "time": "T", "event": "recovered", "generation": 4, "cause": "node0 lost", "excluded": [], "ranks": [0, 1], "spare": "",
        "resume_step": -1, "phases_s": {"detect": 0.015114260000700597, "plan": 0.0}, "total_s": 7.476804042002186,
    }  # fmt: skip
    said = "T  g4  recovered  cause=node0 lost  ranks=0, 1  phases_s=detect 0.01511, plan 0  total_s=7.477"
    assert tables.event_line(event).plain == said


def test_on_a_terminal_a_thousand_nodes_do_not_fill_pages_but_a_program_gets_a_line_a_rank() -> None:
    shown = []
    for terminal in (True, False):
        console = Console(file=io.StringIO(), width=80, force_terminal=terminal, color_system=None)
        tables.show_status(thousand(), console)
        assert isinstance(console.file, io.StringIO)
        shown.append(len(console.file.getvalue().splitlines()))
    assert shown[0] <= 60
    assert shown[1] > 8000
