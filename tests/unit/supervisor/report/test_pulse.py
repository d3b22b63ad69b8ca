"""What a series of heartbeats tells: steps of one moment, times of steps, rates, what scripts report."""

from typing import Any

import pytest

from deadpool.proto.messages import Heartbeat, RankProgress, Reading
from deadpool.supervisor.report.pulse import Pulse


def progress(rank: int, step: int, *, pid: int = 1, age_s: float = 0.0, **fields: Any) -> RankProgress:
    values: dict[str, Any] = {"commit_step": step - 1, "steps_done": step, "exposed_stall_s": 0.0} | fields
    return RankProgress(rank=rank, pid=pid, step=step, step_age_s=age_s, **values)


def heard(pulse: Pulse, node: int, now_s: float, *ranks: RankProgress, generation: int = 1, **fields: Any) -> None:
    pulse.heard(f"node{node}", Heartbeat(generation=generation, ranks=ranks, **fields), now_s=now_s)


def test_ranks_in_step_are_shown_in_step_though_their_nodes_speak_at_other_moments() -> None:
    pulse = Pulse()
    for second in range(4):  # 80 steps a second; node1 speaks half a second after node0
        heard(pulse, 0, 10.0 + second, progress(0, 80 * second))
        heard(pulse, 1, 10.5 + second, progress(1, 80 * second + 40))
    moment_s = pulse.moment_s(now_s=13.6)
    assert moment_s == 13.0
    assert [pulse.ranks[rank].step_at(moment_s) for rank in (0, 1)] == [240, 240]


def test_a_step_that_takes_longer_than_heartbeats_are_apart_begins_when_it_began() -> None:
    pulse = Pulse()
    for second in range(12):  # steps of 5 s, begun at 0, 5, 10
        heard(pulse, 0, float(second), progress(0, second // 5, age_s=second % 5))
    assert [pulse.ranks[0].step_at(moment_s) for moment_s in (4.0, 6.0, 9.9, 11.0)] == [0, 1, 1, 2]


def test_a_silent_node_is_not_waited_for() -> None:
    pulse = Pulse()
    heard(pulse, 0, 10.0, progress(0, 5))
    heard(pulse, 1, 20.0, progress(1, 90))
    assert pulse.moment_s(now_s=20.5) == 20.0
    assert pulse.ranks[0].step_at(20.0) == 5


def test_of_a_node_behind_a_relay_the_step_is_as_new_as_what_its_relay_says() -> None:
    pulse = Pulse()
    for second in range(3):
        heard(pulse, 0, 10.0 + second, progress(0, 80 * second))
    heard(pulse, 1, 10.0, progress(1, 0))
    pulse.later["node1"] = 12.5, 200
    moment_s = pulse.moment_s(now_s=12.6)
    assert moment_s == 12.0
    assert [pulse.ranks[rank].step_at(moment_s, pulse.later.get(f"node{rank}")) for rank in (0, 1)] == [160, 160]
    heard(pulse, 1, 13.0, progress(1, 0))  # it has gone back
    assert "node1" not in pulse.later


def test_what_nobody_has_asked_for_in_time_is_lost_only_where_something_newer_says_the_same() -> None:
    pulse = Pulse()
    heard(pulse, 0, 0.0, progress(0, 0))  # of the lowest rank each step's time is kept
    for second in range(100):
        heard(pulse, 1, float(second), progress(1, second // 40, stepped_s=40.0 * (second // 40), exposed_stall_s=0.01 * second))
        heard(pulse, 0, float(second), progress(0, second, stepped_s=0.5 * second))
    heard(pulse, 1, 100.0, progress(1, 1, pid=2, exposed_stall_s=0.5), generation=2)
    assert pulse.ranks[1].pid == 2
    assert pulse.exposed_stall_s() == pytest.approx(0.99 + 0.5)
    assert len(pulse.step_times_s) == 60
    assert set(pulse.step_times_s) == {0.5}


def test_the_time_of_a_step_is_split_into_own_work_and_calls() -> None:
    pulse = Pulse()
    heard(pulse, 0, 0.0, progress(0, 0, steps_done=0))
    assert pulse.ranks[0].step_s() == (0.0, -1.0)
    heard(pulse, 0, 1.0, progress(0, 4, stepped_s=0.8, waited_s=0.2))
    heard(pulse, 0, 2.0, progress(0, 8, stepped_s=1.6, waited_s=0.6))
    assert list(pulse.ranks[0].step_s()) == [pytest.approx(0.2), pytest.approx(0.075)]
    assert list(pulse.step_times_s) == [pytest.approx(0.2), pytest.approx(0.2)]


def test_where_calls_end_on_a_device_the_wait_is_not_known() -> None:
    pulse = Pulse()
    heard(pulse, 0, 1.0, progress(0, 4, stepped_s=0.8, waited_s=-1e-9))
    heard(pulse, 0, 2.0, progress(0, 8, stepped_s=1.6, waited_s=-1.0))
    assert list(pulse.ranks[0].step_s()) == [pytest.approx(0.2), -1.0]


def test_another_process_of_the_rank_begins_anew() -> None:
    pulse = Pulse()
    heard(pulse, 0, 1.0, progress(0, 40, stepped_s=8.0))
    heard(pulse, 0, 2.0, progress(0, 41, pid=2, steps_done=1, stepped_s=0.5))
    assert pulse.ranks[0].step_s()[0] == 0.5
    assert pulse.ranks[0].step_at(0.0) == 41


def test_rates_are_of_the_last_seconds_and_survive_a_process_that_is_replaced() -> None:
    pulse = Pulse()
    for second, tokens in enumerate((0.0, 1000.0, 2000.0, 300.0, 1300.0)):
        heard(pulse, 0, float(second), progress(0, second), tokens=tokens, sent_bytes=5_000_000_000 * second)
    assert pulse.tokens_per_s(["node0", "node9"]) == pytest.approx(1000.0)
    assert pulse.nodes["node0"].per_s("sent_bytes") == pytest.approx(5e9)
    assert pulse.nodes["node0"].per_s("received_bytes") == 0.0


def test_of_each_number_the_lowest_rank_counts() -> None:
    pulse = Pulse()
    heard(pulse, 0, 1.0, progress(2, 5), reported=(Reading(name="loss", value=2.0), Reading(name="grad_norm", value=7.0)))
    heard(pulse, 1, 1.0, progress(0, 5), reported=(Reading(name="loss", value=1.0),))
    assert pulse.reported(["node0", "node1", "node2"]) == {"loss": 1.0, "grad_norm": 7.0}


def test_what_scripts_have_said_outlives_their_processes() -> None:
    pulse = Pulse()
    heard(pulse, 0, 1.0, progress(0, 5), until=100, reported=(Reading(name="loss", value=2.0),))
    heard(pulse, 0, 2.0)
    assert (pulse.until(["node0", "node1"]), pulse.reported(["node0"])) == (100, {"loss": 2.0})
    assert pulse.until(["node1"]) == 0
