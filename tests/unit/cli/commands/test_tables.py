"""The JSON of `deadpool status` is spelt as the summary's; an event is one line."""

from typing import Any

import pytest
from statuses import job

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
