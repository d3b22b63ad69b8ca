"""When steps count as stalled, and who is to blame for it."""

from collections.abc import Sequence

import pytest

from deadpool.proto.messages import GroupCall, Heartbeat, RankCalls, RankProgress
from deadpool.supervisor.failures.hang import FLOOR_S, Stall, StepWatch, find_culprit


def _heartbeat(step: int, *, generation: int = 1, done: int | None = None, pid: int = 7) -> Heartbeat:
    done = step if done is None else done
    progress = RankProgress(rank=0, pid=pid, step=step, commit_step=-1, steps_done=done, exposed_stall_s=0.0)
    return Heartbeat(generation=generation, ranks=(progress,))


def _play(watch: StepWatch, pauses_s: Sequence[float], *, generation: int = 1, left: bool = False) -> float | None:
    """Makes a step after each pause, with a heartbeat each second; returns how long it had stalled when the watch first spoke."""
    now_s = 1000.0
    assert watch.check(generation=generation, now_s=now_s) is None
    for step, pause_s in enumerate(pauses_s):
        end_s = now_s + pause_s
        while now_s < end_s:
            watch.heard(_heartbeat(step, generation=generation), now_s=now_s)
            stall = watch.check(generation=generation, left=left, now_s=now_s)
            if stall is not None:
                assert stall.sure == (watch.timeout_s is not None and stall.seconds > watch.timeout_s)
                return stall.seconds
            now_s = min(end_s, now_s + 1.0)
        watch.heard(_heartbeat(step + 1, generation=generation), now_s=now_s)
    return None


def test_before_the_first_step_only_the_users_timeout_counts() -> None:
    assert _play(StepWatch(timeout_s=None), [900.0]) is None
    assert _play(StepWatch(timeout_s=60.0), [900.0]) == pytest.approx(61, abs=1)


def test_quick_steps_have_the_floor() -> None:
    assert _play(StepWatch(timeout_s=None), [300.0, 1, 1, 1, FLOOR_S - 1]) is None
    assert _play(StepWatch(timeout_s=None), [300.0, 1, 1, 1, 100.0]) == pytest.approx(FLOOR_S, abs=2)


def test_an_evaluation_as_long_as_five_times_the_longest_before_is_no_hang() -> None:
    assert _play(StepWatch(timeout_s=None), [300.0, 1, 20.0, 1, 99.0, 1, 490.0]) is None
    assert _play(StepWatch(timeout_s=None), [300.0, 1, 20.0, 1, 900.0]) == pytest.approx(100, abs=2)


def test_a_learned_timeout_that_has_run_out_is_longer_in_the_next_generation() -> None:
    watch = StepWatch(timeout_s=None)
    assert _play(watch, [1.0, 1.0, 100.0]) == pytest.approx(FLOOR_S, abs=2)
    assert _play(watch, [1.0, 1.0, 140.0], generation=2) is None
    assert _play(watch, [1.0, 1.0, 900.0], generation=3) == pytest.approx(5 * 140, abs=10)


def test_it_speaks_again_only_after_another_timeout() -> None:
    watch = StepWatch(timeout_s=10.0)
    watch.check(generation=1, now_s=0.0)
    spoke = [now_s for now_s in range(40) if watch.check(generation=1, now_s=float(now_s)) is not None]
    assert spoke == [11, 22, 33]


def test_each_generation_starts_afresh() -> None:
    watch = StepWatch(timeout_s=10.0)
    watch.check(generation=1, now_s=0.0)
    assert watch.check(generation=None, now_s=100.0) is None
    assert watch.check(generation=2, now_s=200.0) is None
    watch.heard(_heartbeat(9, generation=1), now_s=205.0)  # of the one before: nobody's progress
    assert watch.check(generation=2, now_s=211.0) == Stall(seconds=11.0, sure=True)


@pytest.mark.parametrize("timeout_s", [None, 60.0])
def test_once_a_rank_has_left_its_loop_the_others_are_soon_asked_whether_they_wait(timeout_s: float | None) -> None:
    assert _play(StepWatch(timeout_s=timeout_s), [50.0, 1, 1, 1, 100.0], left=True) == pytest.approx(5, abs=1)
    assert _play(StepWatch(timeout_s=timeout_s), [50.0, 0.1, 0.1, 0.1, 100.0], left=True) == pytest.approx(2, abs=1)


def _ranks(*calls: Sequence[tuple[str, str, int, int]], stopped: Sequence[int] = ()) -> list[RankCalls]:
    return [
        RankCalls(
            rank=rank,
            pid=rank,
            step=4,
            groups=tuple(GroupCall(group=g, operation=o, entered=n, completed=c) for g, o, n, c in groups),
            stopped=rank in stopped,
        )
        for rank, groups in enumerate(calls)
    ]


def test_the_rank_that_has_not_entered_is_named_with_the_call_that_the_others_are_in() -> None:
    waiting = ("dp", "allreduce", 17, 16)
    culprit, why = find_culprit(_ranks([waiting], [waiting], [("dp", "broadcast", 16, 16)], [waiting]))
    assert culprit is not None
    assert (culprit.rank, culprit.group, culprit.call, culprit.operation) == (2, "dp", 17, "allreduce")
    assert culprit.waiting == (0, 1, 3)
    assert why == "has not entered call 17 (allreduce) of group dp"


def test_who_waits_for_another_is_not_to_blame() -> None:
    """Tensor groups {0,1} and {2,3}, data groups {0,2} and {1,3}: rank 3 hangs, 2 waits for it, 0 waits for 2, 1 for 3."""
    culprit, _ = find_culprit(
        _ranks(
            [("tp0", "allreduce", 5, 5), ("dp0", "reduce_scatter", 3, 2)],
            [("tp0", "allreduce", 5, 5), ("dp1", "reduce_scatter", 3, 2)],
            [("tp1", "allreduce", 5, 4), ("dp0", "allgather", 2, 2)],
            [("tp1", "allreduce", 4, 4), ("dp1", "allgather", 2, 2)],
        )
    )
    assert culprit is not None
    assert culprit.rank == 3


def test_the_one_that_is_alone_in_a_call_is_named() -> None:
    culprit, why = find_culprit(_ranks([("0", "barrier", 9, 9)], [("0", "barrier", 9, 8)], [("0", "barrier", 9, 9)]))
    assert culprit is not None
    assert (culprit.rank, culprit.call) == (1, 9)
    assert "alone in call 9 (barrier)" in why


def test_calls_in_different_orders_are_said_to_be_that() -> None:
    culprit, why = find_culprit(
        _ranks([("a", "allreduce", 2, 1), ("b", "allreduce", 1, 1)], [("a", "allreduce", 1, 1), ("b", "allreduce", 2, 1)])
    )
    assert culprit is not None
    assert culprit.rank == 0
    assert "different orders" in why


def test_nobody_is_named_when_all_wait_in_the_same_call() -> None:
    culprit, why = find_culprit(_ranks([("0", "allreduce", 4, 3)], [("0", "allreduce", 4, 3)]))
    assert culprit is None
    assert why == "all ranks wait in call 4 (allreduce) of group 0, which every rank has entered"


def test_nobody_is_named_when_nobody_waits() -> None:
    idle = ("0", "allreduce", 4, 4)
    assert find_culprit(_ranks([idle], [idle])) == (None, "")
    culprit, _ = find_culprit(_ranks([idle], [idle], stopped=[1]))
    assert culprit is not None
    assert culprit.rank == 1


def test_a_stopped_process_is_to_blame_whatever_the_others_wait_for() -> None:
    """It stopped inside a call that the root of the broadcast has left; rank 2 is in it too, and more ranks wait for that one."""
    left, inside, idle = ("0", "broadcast", 5, 4), ("0", "broadcast", 4, 3), ("0", "broadcast", 4, 4)
    tp = [("tp", "allreduce", 2, 1), ("tp", "allreduce", 1, 1)]
    ranks = [[left], [inside], [inside, tp[1]], [idle, tp[0]]]
    for stopped, blamed in (((), 2), ((1,), 1)):
        culprit, _ = find_culprit(_ranks(*ranks, stopped=stopped))
        assert culprit is not None
        assert culprit.rank == blamed


def test_point_to_point_calls_are_not_compared() -> None:
    assert find_culprit(_ranks([("pp", "send", 8, 8)], [("pp", "recv", 3, 2)])) == (None, "")
