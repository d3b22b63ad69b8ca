"""`deadpool trace`: supervisor and ranks on one clock, in Chrome's format."""

from typing import Any

from deadpool.cli.commands.trace import chrome_trace

T0 = 1767268800.0  # 2026-01-01T12:00:00 UTC
EVENTS: list[dict[str, Any]] = [
    {"event": "node_joined", "time": "2026-01-01T12:00:00.000+00:00", "generation": 0, "node": "node0"},
    {"event": "node_lost", "time": "2026-01-01T12:00:09.500+00:00", "generation": 1, "node": "node1", "reason": "silent"},
    {
        "event": "recovered", "time": "2026-01-01T12:00:10.000+00:00", "generation": 2, "cause": "node1 lost", "total_s": 0.8,
        "failure_class": "permanent", "phases_s": {"detect": 0.3, "quiesce": 0.4, "first_step": 0.1},
    },
    {"event": "clocks_differ", "time": "2026-01-01T12:00:10.000+00:00", "generation": 2, "ahead_s": {"node0": 100.0}},
]  # fmt: skip


def moment(name: str, at_s: float, *, rank: int = 0, generation: int = 2) -> dict[str, Any]:
    return {"wall_s": T0 + at_s, "generation": generation, "rank": rank, "moment": name}


def spans(traced: dict[str, Any], process: int) -> list[tuple[str, int, float, float]]:
    return [
        (each["name"], each["tid"], each["ts"] / 1e6, each["dur"] / 1e6)
        for each in traced["traceEvents"]
        if each["ph"] == "X" and each["pid"] == process
    ]


def test_the_phases_of_a_recovery_fill_it() -> None:
    traced = chrome_trace(EVENTS, {})
    assert spans(traced, 0) == [
        ("permanent: node1 lost", 1, 9.2, 0.8),
        ("detect", 2, 9.2, 0.3), ("quiesce", 2, 9.5, 0.4), ("first step", 2, 9.9, 0.1),
    ]  # fmt: skip
    assert [each["name"] for each in traced["traceEvents"] if each["ph"] == "i"] == ["node_lost"]


def test_ranks_of_a_node_whose_clock_is_ahead_are_put_right() -> None:
    names = ("Quiesce", "RankPrepared", "Reform", "RankReformed", "RankRestored", "RankResumed")
    moments = {
        "node0": [moment(name, 109.5 + 0.1 * at) for at, name in enumerate(names)],
        "node2": [moment("Assign", 9.5, rank=1), moment("RankJoined", 9.55, rank=1), moment("RankPrepared", 9.75, rank=1)],
    }
    traced = chrome_trace(EVENTS, moments)
    ours = [(name, round(at_s, 3), round(took_s, 3)) for name, _, at_s, took_s in spans(traced, 1)]
    assert ours == [
        ("leaves its step", 9.5, 0.1), ("waits for the plan", 9.6, 0.1), ("opens its groups", 9.7, 0.1), ("restores", 9.8, 0.1),
        ("first step", 9.9, 0.1),
    ]  # fmt: skip
    assert [name for name, *_ in spans(traced, 2)] == ["comes to join()", "builds and rehearses"]
    named = {each["pid"]: each["args"]["name"] for each in traced["traceEvents"] if each["name"] == "process_name"}
    assert named == {0: "supervisor", 1: "node0", 2: "node2"}


def test_moments_of_two_generations_are_not_joined_nor_are_those_of_an_older_job_shown() -> None:
    moments = {"node2": [moment("Quiesce", -3600.0), moment("Reform", 5.0, generation=1), moment("RankReformed", 6.0)]}
    traced = chrome_trace(EVENTS, moments)
    assert spans(traced, 1) == []
    assert [each["name"] for each in traced["traceEvents"] if each["ph"] == "i" and each["pid"] == 1] == [
        "Reform",
        "RankReformed",
    ]


def test_a_job_without_events_has_an_empty_trace() -> None:
    assert [each["ph"] for each in chrome_trace([], {})["traceEvents"]] == ["M"]
