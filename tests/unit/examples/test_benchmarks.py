"""The arithmetic of the benchmarks: what they claim is computed from what was seen."""

import itertools
from datetime import UTC, datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def test_quantiles_and_spread() -> None:
    from benchmarks.stats import quantile, summarize

    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert quantile([7.0], 0.99) == 7.0
    assert summarize([1.0, 2.0, 3.0, 4.0, 100.0]) == {"count": 5, "median": 3.0, "min": 1.0, "max": 100.0, "iqr": 2.0}
    assert summarize([])["median"] is None
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


def test_every_system_comes_first_in_some_round() -> None:
    from benchmarks.stats import rotated

    orders = [rotated(["a", "b", "c"], turn) for turn in range(6)]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert {order[0] for order in orders} == {"a", "b", "c"}


def test_an_outage_ends_when_the_last_rank_has_a_new_step() -> None:
    from benchmarks.watch import Seen, measure_outage

    def seen(rank: int, step: int, at_s: float) -> Seen:
        return Seen(rank=rank, step=step, loss="0x1p+0", at_s=at_s)

    before = [seen(rank, step, float(step)) for step in range(8) for rank in range(2)]
    again = [seen(0, 6, 12.0), seen(1, 6, 12.5), seen(0, 7, 13.0), seen(1, 7, 13.5)]  # back to a checkpoint: nothing new
    new = [seen(0, 8, 14.0), seen(1, 8, 15.0), seen(0, 9, 16.0)]
    outage = measure_outage(before + again + new, ranks=2, step=8, killed_at_s=7.5)
    assert outage is not None
    assert (outage.first_line_s, outage.any_step_s, outage.new_step_s, outage.silent_s) == (4.5, 5.0, 7.5, 8.0)
    assert outage.steps_reexecuted == 2
    assert measure_outage(before + again + new[:1], ranks=2, step=8, killed_at_s=7.5) is None


def test_a_log_is_read_as_it_grows_and_again_when_a_fresh_run_has_emptied_it(tmp_path: Path) -> None:
    from benchmarks.watch import LossWatch, losses

    log = tmp_path / "log"
    watch = LossWatch(log)
    assert watch.look() == []
    log.write_text('{"rank": 0, "step": 0, "loss": "0x1p+0"}\n{"rank": 1, "st')
    assert [(line.rank, line.step) for line in watch.look()] == [(0, 0)]
    with log.open("a") as file:
        file.write('ep": 0, "loss": "0x1p+1"}\n')
    assert [(line.rank, line.step) for line in watch.look()] == [(1, 0)]
    log.write_text('{"rank": 0, "step": 0, "loss": "0x1p+2"}\n')
    watch.look()
    assert losses(watch.seen) == {(0, 0): "0x1p+2", (0, 1): "0x1p+1"}


def test_a_wait_ends_when_the_job_has_ended(tmp_path: Path) -> None:
    from benchmarks.watch import LossWatch

    assert not LossWatch(tmp_path / "log").until(lambda: False, timeout_s=60.0, alive=lambda: False)


def test_what_was_injected_is_told_from_what_followed() -> None:
    """Two failures at the same time are one recovery; what needs none is not measured."""
    from benchmarks import chaos

    at_s = datetime(2026, 1, 1).timestamp()

    def event(name: str, seconds: float, **fields: object) -> dict[str, object]:
        return {"event": name, "time": datetime.fromtimestamp(at_s + seconds).isoformat(), **fields}

    injected = [
        chaos.ChaosFailure(kind=kind, target=target, at_step=5, during_recovery=False)
        for kind, target in (("kill-rank", 1), ("slow-rank", 0), ("kill-node", 1))
    ]
    events = [
        event("injection", 0.0, kind="kill-rank", target=1),
        event("injection", 0.1, kind="slow-rank", target=0),
        event("failure", 0.2),
        event("injection", 0.5, kind="kill-node", target=1),
        event("failure", 0.75),
        event("recovered", 2.0, steps_reexecuted=1),
    ]
    chaos.measure(injected, events)
    found = [(each.detected_after_s, each.recovered_after_s, each.steps_reexecuted) for each in injected]
    assert found == [(0.2, 2.0, 1), (None, None, None), (0.25, 1.5, 1)]
    assert chaos.summary(injected)["kill-node"] == {
        "count": 1, "during_recovery": 0, "detected_after_s": 0.25, "recovered_after_s": 1.5, "steps_reexecuted": 1,
    }  # fmt: skip


def test_what_is_not_accounted_for_is_named() -> None:
    """A failure that nobody has noted, a second that is booked twice, an event that the metrics have not counted."""
    from benchmarks.account import JobMetrics, unaccounted

    def event(name: str, seconds: float, **fields: object) -> dict[str, object]:
        return {"event": name, "time": f"2026-01-01T00:00:{seconds:06.3f}+00:00", **fields}

    events = [
        event("started", 0.0),
        event("injection_armed", 2.0, kind="kill-rank"),
        event("injection", 2.0, kind="kill-rank"),
        event("failure", 2.1, failure_class="transient"),
        event("recovered", 2.6, failure_class="transient"),
        event("job_ended", 10.0),
    ]
    summary = {
        "spent_s": {"productive": 9.5, "recovering": 0.5, "node_s": 30.0},
        "recoveries": [{"class": "transient", "total_s": 0.5}],
    }
    lines = [
        'deadpool_spent_seconds{kind="productive"} 9.5',
        'deadpool_spent_seconds{kind="recovering"} 0.5',
        'deadpool_recovery_phase_seconds_total{phase="quiesce"} 0.5',
        "deadpool_recovery_seconds_sum 0.5",
        'deadpool_recoveries_total{class="transient"} 1',
        'deadpool_failures_total{class="transient"} 1',
        'deadpool_injections_total{kind="kill-rank"} 1',
        *(f'deadpool_events_total{{event="{each["event"]}"}} 1' for each in events),
    ]

    def found(sent: list[str], wall_s: float = 10.0, lines: list[str] = lines) -> list[str]:
        return unaccounted(sent, events, JobMetrics("\n".join([*lines, ""])), summary, wall_s=wall_s)

    assert found(["kill-rank"]) == []
    assert found(["kill-rank", "kill-node"]) == ["sent and not in the events: {'kill-node': 1} and {}"]
    assert [each.partition(":")[0] for each in found(["kill-rank"], lines=lines[:-1])] == ["events in file and metrics"]
    assert found(["kill-rank"], wall_s=5.0) == ["10.000 s are booked; the events span 10.000 s, the job took 5.000 s"]
    assert [each.partition(":")[0] for each in found(["kill-rank"], lines=lines[1:])] == ["productive"]


def test_the_seed_draws_the_training_but_not_what_is_given() -> None:
    from benchmarks.chaos import DRAWN, training

    drawn = training(3, [])
    assert training(3, []) == drawn
    for option, choices in DRAWN.items():
        found = [dict(itertools.pairwise(training(seed, [])))[option] for seed in range(60)]
        assert set(found) == set(choices)
    given = training(3, ["--parallel", "fsdp", "--layers", "3"])
    assert given[-4:] == ["--parallel", "fsdp", "--layers", "3"]
    assert given.count("--parallel") == 1
    assert given[-8:-4] == drawn[-4:], "what is drawn for one option does not depend on the others"


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_starts_as_a_file_and_as_a_module(path: Path) -> None:
    """`python benchmarks/X.py` has benchmarks/ on its path and not what lies above, until the file says so."""
    lines = path.read_text().splitlines()
    ours = [number for number, line in enumerate(lines) if line.startswith(("from benchmarks", "import benchmarks"))]
    if ours and any(line.startswith("if __name__") for line in lines):
        here = [number for number, line in enumerate(lines) if line.startswith("sys.path.insert(0, str(Path(__file__)")]
        assert here, f"{path.name} does not find the package benchmarks when it is started as a file"
        assert here[0] < min(ours)


def test_steps_under_a_checkpoint_are_told_from_those_beside_it() -> None:
    from benchmarks.checkpoints import steps_of, under, windows_in

    ranks = [[(10.0, 0.0), (11.0, 0.0), (12.5, 0.2)], [(10.1, 0.0), (11.2, 0.1), (12.4, 0.1)]]
    first, second = steps_of(ranks)
    assert (first.duration_s, second.duration_s) == pytest.approx((1.1, 1.5))
    assert (first.stall_s, second.stall_s) == pytest.approx((0.1, 0.2))
    at = datetime.fromtimestamp(13.0, UTC).isoformat()
    windows = windows_in([{"event": "checkpoint", "time": at, "step": 2}, {"event": "started", "time": at}], ranks)
    assert windows == [pytest.approx((11.2, 13.0))]
    assert [under(step, windows) for step in (first, second)] == [False, True]


def test_a_restart_begins_with_steps_that_were_done_before() -> None:
    """A survivor's last step is not taken for the job's first new one, however many ranks go on."""
    from benchmarks.node_loss import restarted
    from benchmarks.watch import Seen

    def seen(rank: int, step: int, at_s: float) -> Seen:
        return Seen(rank=rank, step=step, loss="0x1p+0", at_s=at_s)

    before = [seen(rank, step, float(step)) for step in range(5) for rank in range(4)]
    last_words = [seen(0, 5, 4.6), seen(1, 5, 4.7)]
    again = [seen(0, 3, 9.0), seen(0, 4, 10.0), seen(1, 3, 10.1), seen(0, 5, 11.0), seen(1, 4, 11.1), seen(1, 5, 12.0)]
    assert restarted(before + last_words + again, newest=4, killed_at_s=4.5) == again


def test_torchrun_is_paired_with_the_same_case_of_the_same_turn() -> None:
    from benchmarks.node_loss import FIGURES, summed_up, times_longer

    def result(system: str, turn: int, total_s: float, *, ok: bool = True) -> dict[str, object]:
        figures = dict.fromkeys(FIGURES, total_s)
        return {"system": system, "turn": turn, "ok": ok, **(figures if ok else {"why": "it did not come back"})}

    ours = [result("deadpool-spare", 0, 2.0), result("deadpool-spare", 1, 1.0), result("deadpool-fewer", 0, 4.0)]
    theirs = [result("torchrun-spare", 0, 8.0), result("torchrun-spare", 1, 8.0), result("torchrun-fewer", 0, 0.0, ok=False)]
    ratios = times_longer(ours + theirs)
    assert ratios.keys() == {"torchrun-spare / deadpool-spare"}
    assert ratios["torchrun-spare / deadpool-spare"] == {"count": 2, "median": 6.0, "min": 4.0, "max": 8.0, "iqr": 2.0}
    assert (summed_up(theirs[2:])["failed"], summed_up(ours[:2])["total_s"]["median"]) == (1, 1.5)


def test_keep_alive_settings_equal_our_heartbeats() -> None:
    from benchmarks.node_loss import systems

    known = systems(1.0, 3.0)
    assert known["torchrun-spare"].rendezvous == {"keep_alive_interval": 1, "keep_alive_max_attempt": 3}
    assert known["torchrun-spare-defaults"].rendezvous == {}
    assert [(system.nnodes, system.ranks_after) for system in (known["deadpool-spare"], known["deadpool-fewer"])] == [
        ("2", 4), ("1:2", 2),
    ]  # fmt: skip


def test_a_run_ends_well_when_each_line_is_there_once() -> None:
    from benchmarks.exits import NODES, RANKS_PER_NODE, STEPS, found

    lines = [f"{rank} {step}" for rank in range(NODES * RANKS_PER_NODE) for step in range(STEPS + 1)]
    assert found(0, "deadpool: done", {"recoveries": []}, lines) == []
    aborted = "[rank 1] terminate called without an active exception\n"
    assert found(1, aborted, {"recoveries": [{}]}, [*lines[1:], lines[-1]]) == [
        "exit code 1",
        aborted.strip(),
        "1 recoveries",
        f"2 times: {lines[-1]}",
        f"{len(lines) - 1} different lines, not {len(lines)}",
    ]


def test_the_data_plane_s_figures_are_shares_of_what_was_measured_beside_them() -> None:
    from benchmarks.data_plane import shares

    ceilings = {"memcpy": [4.0, 6.0, 5.0], "xxh3": [10.0], "socket_loop": [2.5], "mpi_loop": None}
    found = shares(ceilings | {"snapshot": [4.0], "replicate": [2.0], "commit": [1.6]})
    assert list(found.values()) == [0.8, 0.8, 1.25]


def test_what_a_strategy_costs_an_hour_is_what_the_simulator_says_too() -> None:
    from benchmarks.strategies import SYSTEMS, compared

    def system(total_s: float, again: float) -> dict[str, object]:
        spread = {"median": total_s, "min": total_s, "max": total_s, "count": 3}
        return {"total_s": spread, "steps_reexecuted": {"median": again}, "step_s": {"median": 0.1}, "bitwise": 3, "runs": 3}

    away = {"slowed_s": {"median": 1.0}, "away_s": {"median": 2.0}}  # half of the ranks
    measured = [system(0.5, 1.0), system(6.0, 1.0), system(0.6, 2.0) | away, system(15.0, 5.0)]
    found = compared(dict(zip(SYSTEMS.values(), measured, strict=True)))
    hourly = {name: each["steps_per_hour"]["30 failures an hour"] for name, each in found.items()}
    assert hourly["hot-swap"]["measured"] > hourly["memory-restart"]["measured"] > hourly["checkpoint-restart"]["measured"]
    for each in hourly.values():
        assert each["simulated"] == pytest.approx(each["measured"], rel=0.03)
