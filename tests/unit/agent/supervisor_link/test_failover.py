"""Which node starts the next supervisor, and when; how often the launcher does."""

import itertools

from deadpool.agent.supervisor_link.failover import FailoverTurn
from deadpool.cli.launcher.restarts import Restarts
from deadpool.proto.terms import CRASHED, SUPERSEDED


def claims_after_s(index: int, *, newest: int = 1, listened: bool = True, mine: bool = False) -> float:
    turn = FailoverTurn(index)
    now_s = 100.0
    while not turn.absent(newest=newest, listened=listened, mine=mine, now_s=now_s):
        now_s += 0.1
        assert now_s < 200
    return now_s - 100


def test_the_lowest_node_moves_first() -> None:
    waits = [claims_after_s(index) for index in range(4)]
    assert waits == sorted(waits)
    assert 0.5 <= waits[0] < 1.5
    assert all(later - earlier > 0.3 for earlier, later in itertools.pairwise(waits))


def test_the_first_supervisor_is_node_0s() -> None:
    assert claims_after_s(0, newest=0, listened=False) == 0
    assert claims_after_s(1, newest=0, listened=False) > 3


def test_who_has_claimed_has_time_to_begin() -> None:
    assert claims_after_s(0, listened=False) > 10


def test_a_supervisor_that_dies_on_a_living_node_is_replaced_there_at_once() -> None:
    assert claims_after_s(3, mine=True) == 0


def test_a_new_claim_or_a_first_sign_of_life_begins_the_wait_anew() -> None:
    turn = FailoverTurn(0)
    assert not turn.absent(newest=1, listened=True, mine=False, now_s=0.0)
    assert not turn.absent(newest=2, listened=False, mine=False, now_s=0.9)
    assert not turn.absent(newest=2, listened=True, mine=False, now_s=5.0)
    assert not turn.absent(newest=2, listened=True, mine=False, now_s=5.9)
    turn.present()
    assert not turn.absent(newest=2, listened=True, mine=False, now_s=6.1)
    assert turn.absent(newest=2, listened=True, mine=False, now_s=7.2)


def test_where_no_node_hosts_one_any_more_the_job_ends() -> None:
    turn = FailoverTurn(0)
    assert not turn.nobody_else(newest=6, listened=False, now_s=0.0)
    assert not turn.nobody_else(newest=6, listened=False, now_s=25.0)
    assert not turn.nobody_else(newest=7, listened=False, now_s=29.0)  # another node tries
    assert not turn.nobody_else(newest=7, listened=False, now_s=55.0)
    assert turn.nobody_else(newest=7, listened=False, now_s=60.0)


def test_a_killed_or_crashed_supervisor_is_started_again_some_times() -> None:
    restarts = Restarts()
    delays: list[float] = []
    while (delay_s := restarts.delay_s(-9 if len(delays) % 2 else CRASHED, 10.0)) is not None:
        delays.append(delay_s)
    assert delays == [0.0, 0.5, 1.0, 2.0, 4.0]
    restarts.started(20.0)
    assert restarts.delay_s(-9, 30.0) is None
    restarts.started(30.0)
    assert restarts.delay_s(-9, 95.0) == 0.0


def test_one_that_ended_by_itself_meant_it() -> None:
    for exit_code in (0, 1, 2, SUPERSEDED, 130, 143):
        assert Restarts().delay_s(exit_code, 1.0) is None
