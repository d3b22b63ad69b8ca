"""`deadpool recoveries`: every recovery out of a job's events, as a table, JSON and a picture."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deadpool.cli.commands.recoveries import past_recoveries, recoveries_json, recoveries_table
from deadpool.cli.commands.recoveries_plot import plot_recoveries
from deadpool.host.errors import ConfigError

EVENTS: list[dict[str, Any]] = [
    {"event": "node_joined", "time": "2026-01-01T12:00:00.000+00:00", "generation": 0},
    {
        "event": "recovered", "time": "2026-01-01T12:00:30.500+00:00", "generation": 2, "cause": "node1 lost", "ranks": [2, 3],
        "failure_class": "permanent", "spare": "node2", "moved": [2, 3], "resume_step": 15, "steps_reexecuted": 1, "total_s": 0.8,
        "phases_s": {"detect": 0.16, "quiesce": 0.4, "first_step": 0.24},
    },
    {"event": "generation", "time": "2026-01-01T12:00:40.000+00:00", "generation": 3},
    {
        "event": "recovered", "time": "2026-01-01T12:01:00.000+00:00", "generation": 3, "cause": "rank 0 exited with 1",
        "failure_class": "transient", "ranks": [0], "spare": "", "moved": [], "resume_step": 20, "steps_reexecuted": 2,
        "total_s": 0.4,
    },
]  # fmt: skip


def test_each_recovery_has_its_time_and_what_became_of_it() -> None:
    first, second = past_recoveries(EVENTS)
    assert (first.ended_s, first.phases_s.quiesce, first.failure_class) == (30.5, 0.4, "permanent")
    assert first.became == "recovered in 0.80 s: spare node2 took ranks 2, 3, resumed at step 15, 1 step again"
    assert (second.ended_s, second.phases_s.quiesce, second.ranks) == (60.0, 0.0, (0,)), "an older log has no phases"
    assert past_recoveries([]) == past_recoveries([{"event": "started"}]) == []


def test_for_programs_a_class_is_a_class() -> None:
    plain = recoveries_json(past_recoveries(EVENTS))
    assert [each["class"] for each in plain] == ["permanent", "transient"]
    assert plain[0]["phases_s"]["detect"] == 0.16


def test_the_table_fits_80_columns_and_shows_phases_as_letters() -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(recoveries_table(past_recoveries(EVENTS)))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "DDDDDDQQQQQQQQQQQQQQQFFFFFFFFF" in text
    assert "12:00:30" in text
    assert "0.800 s" in text
    assert "transient: rank 0 exited with 1" in text
    assert "D detect  Q quiesce  F first step" in text


def test_the_picture_is_written_or_the_reason_is_said(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    plot_recoveries(tmp_path / "r.png", "gpt", past_recoveries(EVENTS))
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match=r"--plot .*r\.xyz"):
        plot_recoveries(tmp_path / "r.xyz", "gpt", past_recoveries(EVENTS))
