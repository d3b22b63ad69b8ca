"""The launcher's console lines: from events.jsonl as it grows, half-written lines included."""

import json
from pathlib import Path

import pytest

from deadpool.cli.launcher.console import Progress, describe

RECOVERED = {
    "event": "recovered", "generation": 2, "ranks": [2, 3], "moved": [2, 3], "spare": "node2", "resume_step": 15,
    "steps_reexecuted": 1, "total_s": 0.8349,
}  # fmt: skip


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (RECOVERED, "recovered in 0.83 s: spare node2 took ranks 2, 3, resumed at step 15, 1 step again"),
        (
            RECOVERED | {"spare": "", "moved": [], "ranks": [3], "steps_reexecuted": 0},
            "recovered in 0.83 s: rank 3 back in place, resumed at step 15, 0 steps again",
        ),
        ({"event": "recovered"}, "recovered in ? s: all processes kept, resumed at step ?, ? steps again"),
        (
            RECOVERED | {"ranks": [0, 2, 3]},
            "recovered in 0.83 s: spare node2 took ranks 2, 3, rank 0 back in place, resumed at step 15, 1 step again",
        ),
        (RECOVERED | {"event": "restarted"}, "restarted in 0.83 s: spare node2 took ranks 2, 3, all ranks begin from step 15"),
        ({"event": "restarted", "resume_step": -1, "total_s": 0.5}, "restarted in 0.50 s: all ranks begin anew"),
        ({"event": "resized", "nnodes": 1}, "the job has 1 node from now on"),
        ({"event": "failure", "cause": "node node1 lost", "failure_class": "permanent"}, "node node1 lost: permanent"),
        ({"event": "injection", "kind": "kill-node", "target": 1}, "injected: kill-node 1"),
        (
            RECOVERED | {"failure_class": "planned"},
            "moved in 0.83 s: spare node2 took ranks 2, 3, resumed at step 15, 1 step again",
        ),
        ({"event": "drain", "node": "node1", "reason": ""}, "node1 is drained"),
        ({"event": "drain", "node": "node1", "reason": "repair"}, "node1 is drained (repair)"),
        ({"event": "drain_undone", "node": "node1", "reason": "asked for"}, "node1 is not drained any more: asked for"),
        ({"event": "gets_hot", "node": "node2", "ranks": (2, 3)}, "node2 builds ranks 2, 3 beside those that train"),
        ({"event": "not_hot", "node": "node2", "ranks": (2,), "reason": "it is late"}, "node2 cannot take rank 2: it is late"),
        ({"event": "waiting_for_node"}, "no spare is left: waiting for a node"),
        ({"event": "waiting_for_node", "ranks": [2, 3]}, "no spare is left: waiting for a node for ranks 2, 3"),
        ({"event": "node_lost", "node": "node1", "reason": "silent for 3.0 s", "ranks": [2, 3]}, ""),
        (
            {"event": "node_lost", "node": "node2", "reason": "its stream was closed", "ranks": [], "spares_left": 0},
            "spare node2 lost: its stream was closed; 0 spares left",
        ),
        ({"event": "spare_ready", "node": "node2", "again": False}, ""),
        ({"event": "spare_not_ready", "node": "node2", "standins": 1}, "spare node2 is not ready: 1 stand-in waiting there"),
        ({"event": "spare_ready", "node": "node2", "again": True}, "spare node2 is ready again"),
        ({"event": "plan"}, ""),
        ({}, ""),
    ],
)
def test_what_a_person_is_told(event: dict[str, object], line: str) -> None:
    assert describe(event) == line


def test_a_growing_file_is_followed_without_losing_or_repeating_anything(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    progress = Progress(path)
    assert progress.new_events() == []
    text = b"".join(json.dumps({"event": "é", "number": number}, ensure_ascii=False).encode() + b"\n" for number in range(20))
    seen = []
    with path.open("ab", buffering=0) as file:
        for at in range(0, len(text), 7):  # cuts lines and the two bytes of a character
            file.write(text[at : at + 7])
            seen += progress.new_events()
    assert [event["number"] for event in seen] == list(range(20))
    assert progress.new_events() == []


def test_what_an_earlier_job_wrote_to_the_same_file_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"event": "started"}\n')
    progress = Progress(path)
    with path.open("a") as file:
        file.write('{"event": "waiting_for_node"}\n')
    assert progress.new_lines() == ["no spare is left: waiting for a node"]


def test_a_cut_line_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    progress = Progress(path)
    path.write_text('{"event": "recov{"event": "started"}\n[]\n{"event": "started"}\n')
    assert progress.new_lines() == ["training"]
