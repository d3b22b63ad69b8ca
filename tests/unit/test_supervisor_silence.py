"""Silence, and why a supervisor that was away itself must not believe in it."""

import pytest

from deadpool.supervisor.silence import Silence


def _watch(silence: Silence, *, until_s: float, beats: dict[str, float] | None = None) -> dict[str, float]:
    """Checks on time until then; nodes in `beats` beat each second up to their time. Returns node -> when it was given up."""
    lost: dict[str, float] = {}
    now_s, next_beat_s = 0.0, 1.0
    while now_s < until_s:
        now_s = min(silence.next_check_s(), next_beat_s)
        if now_s == next_beat_s:
            next_beat_s += 1.0
            for node, last_s in (beats or {}).items():
                if now_s <= last_s:
                    silence.heard(node, now_s=now_s)
        if now_s >= silence.next_check_s():
            lost |= dict.fromkeys((node for node, _ in silence.check(now_s=now_s)), now_s)
    return lost


def _silence() -> Silence:
    silence = Silence(timeout_s=3.0, now_s=0.0)
    silence.heard("a", now_s=0.0)
    silence.heard("b", now_s=0.0)
    return silence


def test_silent_node_is_lost_after_the_timeout() -> None:
    lost = _watch(_silence(), until_s=10.0, beats={"a": 10.0, "b": 4.0})
    assert list(lost) == ["b"]
    assert lost["b"] == pytest.approx(7.25, abs=0.26)


def test_node_that_was_told_to_go_is_not_missed() -> None:
    silence = _silence()
    silence.forget("b")
    assert list(_watch(silence, until_s=10.0, beats={"a": 10.0})) == []


@pytest.mark.parametrize("away_s", [1.0, 3.5, 60.0])
def test_supervisor_that_was_away_declares_nobody_dead(away_s: float) -> None:
    silence = _silence()
    _watch(silence, until_s=2.0)
    assert silence.check(now_s=2.0 + away_s) == []
    assert silence.lag_s == pytest.approx(away_s, abs=0.5)


def test_beat_that_is_handled_first_does_not_hide_the_lag() -> None:
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
