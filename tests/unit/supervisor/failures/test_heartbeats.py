"""HeartbeatMonitor, and why a supervisor that was away itself must not believe in it."""

import pytest

from deadpool.supervisor.failures.heartbeats import HeartbeatMonitor


def _watch(silence: HeartbeatMonitor, *, until_s: float, heartbeats: dict[str, float] | None = None) -> dict[str, float]:
    """Checks on time until then; nodes in `heartbeats` send one each second up to their time. Returns node -> when given up."""
    lost: dict[str, float] = {}
    now_s, next_heartbeat_s = 0.0, 1.0
    while now_s < until_s:
        now_s = min(silence.next_check_s(), next_heartbeat_s)
        if now_s == next_heartbeat_s:
            next_heartbeat_s += 1.0
            for node, last_s in (heartbeats or {}).items():
                if now_s <= last_s:
                    silence.heard(node, now_s=now_s)
        if now_s >= silence.next_check_s():
            lost |= dict.fromkeys((node for node, _ in silence.check(now_s=now_s)), now_s)
    return lost


def _silence() -> HeartbeatMonitor:
    silence = HeartbeatMonitor(timeout_s=3.0, now_s=0.0)
    silence.heard("a", now_s=0.0)
    silence.heard("b", now_s=0.0)
    return silence


def test_silent_node_is_lost_after_the_timeout() -> None:
    lost = _watch(_silence(), until_s=10.0, heartbeats={"a": 10.0, "b": 4.0})
    assert list(lost) == ["b"]
    assert lost["b"] == pytest.approx(7.0, abs=0.01)  # 3 s after its last heartbeat, not at the next check after that


def test_node_that_was_told_to_go_is_not_missed() -> None:
    silence = _silence()
    silence.forget("b")
    assert list(_watch(silence, until_s=10.0, heartbeats={"a": 10.0})) == []


@pytest.mark.parametrize("away_s", [1.0, 3.5, 60.0])
def test_supervisor_that_was_away_declares_nobody_dead(away_s: float) -> None:
    silence = _silence()
    _watch(silence, until_s=2.0)
    assert silence.check(now_s=2.0 + away_s) == []
    assert silence.lag_s == pytest.approx(away_s, abs=0.5)


def test_heartbeat_that_is_handled_first_does_not_hide_the_lag() -> None:
    silence = _silence()
    silence.heard("a", now_s=60.0)
    assert silence.check(now_s=60.01) == []


def test_silence_goes_on_counting_after_the_supervisor_is_back() -> None:
    silence = _silence()
    assert silence.check(now_s=60.0) == []
    now_s = 60.0
    lost: list[tuple[str, float]] = []
    while not lost:
        now_s = silence.next_check_s()
        lost = silence.check(now_s=now_s)
    assert {node for node, _ in lost} == {"a", "b"}
    assert now_s == pytest.approx(63.0, abs=0.6)


def _lost_after(pauses_s: list[float], timeout_s: float) -> float | None:
    """Plays one node's heartbeats, apart by `pauses_s`; returns the pause in which it was given up, None when it was not."""
    silence = HeartbeatMonitor(timeout_s=timeout_s, now_s=0.0)
    silence.heard("a", now_s=0.0)
    at_s = 0.0
    for pause_s in pauses_s:
        at_s += pause_s
        while silence.next_check_s() < at_s:
            if silence.check(now_s=silence.next_check_s()):
                return pause_s
        silence.heard("a", now_s=at_s)
    return None


_QUIET = [0.333, 0.334, 0.332, 0.335, 0.334, 0.333] * 10
# An agent's heartbeats beside eight busy processes on two cores, as recorded: most on time, some in a bunch after a pause.
_LOADED = [0.34, 0.33, 0.41, 0.27, 0.36, 0.62, 0.08, 0.31, 0.35, 0.78, 0.02, 0.21, 0.33, 0.55, 0.12, 0.34, 0.91, 0.01, 0.09] * 6


def test_on_a_quiet_machine_the_timeout_is_what_was_asked_for() -> None:
    assert _lost_after([*_QUIET, 1.09], 1.0) == 1.09
    assert _lost_after([*_QUIET, 0.99], 1.0) is None


def test_on_a_loaded_machine_a_pause_a_bit_longer_than_any_before_is_no_silence() -> None:
    assert _lost_after([*_LOADED, 1.3, *_LOADED, 1.8, *_LOADED, 2.5], 1.0) is None
    assert _lost_after([*_LOADED, 1.5], 1.0) == 1.5


def test_what_was_seen_is_forgotten_after_a_minute() -> None:
    assert _lost_after([*_LOADED, *_QUIET * 4, 1.2], 1.0) == 1.2


def test_a_node_whose_pauses_grow_is_lost_in_the_end() -> None:
    assert _lost_after([0.9, 1.3, 1.9, 2.8, 3.2], 1.0) == 3.2


def _behind_a_relay() -> HeartbeatMonitor:
    silence = HeartbeatMonitor(timeout_s=3.0, now_s=0.0)
    for node in "ab":
        silence.heard(node, now_s=0.0)
        silence.speaks_through(node, "r")
    silence.relay_heard("r", now_s=0.0)
    return silence


def _check(silence: HeartbeatMonitor, now_s: float) -> list[str]:
    """Returns who is given up from the last check until then."""
    lost = []
    while (at_s := silence.next_check_s()) < now_s:
        lost += silence.check(now_s=at_s)
    return [node for node, _ in [*lost, *silence.check(now_s=now_s)]]


def test_who_is_silent_behind_a_relay_that_speaks_is_lost() -> None:
    silence = _behind_a_relay()
    for now_s in (0.9, 1.9, 2.9):
        _check(silence, now_s)
        silence.relay_heard("r", now_s=now_s)
        silence.heard("a", now_s=now_s, ago_s=0.4)
    assert _check(silence, 3.1) == ["b"], "after the timeout and no later, though it was heard of through a relay"


def test_the_silence_of_a_relay_explains_that_of_those_behind_it() -> None:
    silence = _behind_a_relay()
    assert _check(silence, 2.9) == []
    assert _check(silence, 3.1) == []
    assert silence.silent_relays(now_s=3.1) == ["r"]
    silence.relay_gone("r")
    for node in "ab":
        silence.expect(node, now_s=3.1, within_s=1.0)
    silence.speaks_through("a", "")
    silence.heard("a", now_s=3.5)
    assert _check(silence, 6.0) == []
    silence.heard("a", now_s=6.0)
    assert _check(silence, 7.2) == ["b"]


def test_what_a_relay_says_late_does_not_make_a_node_older() -> None:
    silence = _behind_a_relay()
    silence.heard("a", now_s=2.0)
    silence.heard("a", now_s=2.5, ago_s=1.0)
    silence.heard("b", now_s=2.5, ago_s=0.3)
    for now_s in (2.5, 4.0, 4.9):
        assert _check(silence, now_s) == []
        silence.relay_heard("r", now_s=now_s)
    assert _check(silence, 5.05) == ["a"]
    assert _check(silence, 5.25) == ["b"]


def test_who_is_expected_back_is_waited_for_while_others_still_come() -> None:
    silence = HeartbeatMonitor(timeout_s=3.0, now_s=0.0)
    for node in range(9):
        silence.expect(str(node), now_s=0.0, within_s=2.0)
    lost = []
    for node in range(8):  # one every two seconds: the supervisor has no more time for them
        lost += _check(silence, 2.0 * node + 1.0)
        for back in range(node + 1):
            silence.heard(str(back), now_s=2.0 * node + 1.0)
    assert lost == []
    assert _check(silence, 17.5) == []
    for back in range(8):
        silence.heard(str(back), now_s=17.5)
    assert _check(silence, 18.3) == ["8"], "a timeout after the last one that came back"


def test_how_long_the_way_back_took_says_nothing_of_the_node() -> None:
    """It was the supervisor, or the relay, that was away: a pause of that time is no reason for more patience with the node."""
    silence = HeartbeatMonitor(timeout_s=3.0, now_s=0.0)
    for node in ("a", "b"):
        silence.expect(node, now_s=0.0, within_s=0.0)
        silence.heard(node, now_s=2.5)
    assert silence.limit_s("b", now_s=2.5) == 3.0
