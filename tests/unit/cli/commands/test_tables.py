"""What `deadpool status` shows fits a terminal of 80 columns, and its JSON is spelt as the summary's."""

import io
from typing import Any

import pytest
from rich.console import Console

from deadpool.cli.commands import tables
from deadpool.proto.messages import NO_STEP
from deadpool.proto.messages.status import JobStatus, NodeStatus, PhaseTimes, RankStatus, RecoveryRecord


def node(index: int, role: str, ranks: tuple[int, ...]) -> NodeStatus:
    played = tuple(RankStatus(rank=rank, pid=1000 + rank, step=16, commit_step=15, exposed_stall_s=0.0) for rank in ranks)
    return NodeStatus(
        node_id=f"node{index}", index=index, role=role, host="127.0.0.1", heartbeat_age_s=0.4, cpu_share=0.5, memory_share=0.25,
        shm_free_bytes=3 << 30, standins_ready=2, ranks=played,
    )  # fmt: skip


RECOVERY = RecoveryRecord(
    generation=2, cause="node1 lost: its stream was closed", failure_class="permanent", node="node1", ranks=(2, 3), spare="node2",
    resume_step=15, steps_reexecuted=1, survivors_kept_processes=True, phases_s=PhaseTimes(quiesce=0.5), total_s=0.834,
    committed_steps_lost=0, moved=(2, 3),
)  # fmt: skip


def status(**changes: Any) -> JobStatus:
    values: dict[str, Any] = {
        "job_id": "gpt-1", "phase": "run", "generation": 2, "step": 16, "commit_step": 15, "steps_per_s": 9.5, "world_size": 4,
        "hooked": True, "exposed_stall_s": 0.25, "recoveries": (RECOVERY,),
        "nodes": (node(2, "member", (2, 3)), node(1, "lost", ()), node(0, "member", (0, 1)), node(3, "spare", ())),
    }  # fmt: skip
    return JobStatus(**values | changes)


def shown(view: Any, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_of_a_job_that_ends_no_node_is_called_lost() -> None:
    text = shown(tables.status_view(status(phase="end", nodes=(node(0, "lost", ()),))))
    assert "the job ends" in text
    assert "lost" not in text.replace("node1 lost: its stream", "")


def test_all_that_matters_is_shown_in_80_columns() -> None:
    words = " ".join(shown(tables.status_view(status())).split())
    for part in ("gpt-1", "run", "generation 2", "step 16 (committed 15)", "9.5 steps/s", "4 ranks", "exposed stall 0.250 s"):
        assert part in words
    for part in (
        "node0 member 0 1000 16 0.4 s 50% 25% 3.0 GiB 2 1 1001 16",
        "spare",
        "lost",
        "permanent: node1 lost: its stream was closed",
        "0.834 s",
    ):
        assert part in words
    for part in ("spare node2 took ranks 2, 3, resumed at step 15, 1 again", "quiesce 0.500"):
        assert part in words


def test_lost_nodes_come_last() -> None:
    lines = shown(tables.status_view(status(recoveries=())), 120).splitlines()
    order = [name for line in lines for name in ("node0", "node1", "node2", "node3") if name in line]
    assert order == ["node0", "node2", "node3", "node1"]


def test_a_job_without_hooks_says_so_and_has_no_steps() -> None:
    text = shown(tables.status_view(status(hooked=False, step=NO_STEP, commit_step=NO_STEP, recoveries=())), 200)
    assert "without hooks" in text
    assert "step - (committed -)" in text


def test_json_spells_the_class_as_the_summary_does() -> None:
    plain = tables.as_json(status())
    assert plain["recoveries"][0]["class"] == "permanent"
    assert "failure_class" not in plain["recoveries"][0]
    first = plain["nodes"][0]["ranks"][1]
    assert {key: first[key] for key in ("rank", "pid", "step", "wait_s")} == {"rank": 3, "pid": 1003, "step": 16, "wait_s": -1.0}


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
