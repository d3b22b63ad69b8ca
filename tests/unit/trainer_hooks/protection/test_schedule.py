"""Which states are tried, exchanged and compared, whatever is refused on the way."""

import itertools
import random

from hypothesis import given
from hypothesis import strategies as st

from deadpool.trainer_hooks.protection.schedule import EXCHANGE_EVERY_STEPS, PAUSE_STEPS_MAX, Schedule


def tried(schedule: Schedule, steps: range, *, refused: bool) -> list[int]:
    """Returns the steps that are tried, each of which ends so."""
    found = []
    for step in steps:
        if schedule.is_due(step):
            found.append(step)
            schedule.begins(step)
            (schedule.refused if refused else schedule.committed)(step)
    return found


def test_the_pause_grows_with_each_refusal_and_is_over_with_a_commit() -> None:
    schedule = Schedule(first_step=0, exchange_from=0, exchanges=0)
    assert tried(schedule, range(40), refused=True) == [0, 1, 2, 4, 8, 16, 32]
    longest = tried(schedule, range(40, 1000), refused=True)
    assert max(later - earlier for earlier, later in itertools.pairwise(longest)) == PAUSE_STEPS_MAX
    start = longest[-1] + PAUSE_STEPS_MAX
    second = start + PAUSE_STEPS_MAX  # was settled before the first commit
    assert tried(schedule, range(start, second + 3), refused=False) == [start, second, second + 1, second + 2]
    assert tried(schedule, range(second + 3, second + 9), refused=True) == [second + 3, second + 4, second + 5, second + 7]


def test_the_state_after_next_follows_what_the_verdict_says() -> None:
    """The next one is settled before: a slow rank has not heard the verdict yet when a fast one comes to it."""
    schedule = Schedule(first_step=0, exchange_from=0, exchanges=0)
    found = []
    for step in range(20):
        if schedule.is_due(step):
            found.append(step)
            schedule.begins(step)
            schedule.committed(step, interval=4 if step < 9 else 2)
    assert found == [0, 1, 5, 9, 13, 15, 17, 19]


def test_states_that_become_checkpoints_are_due_whatever_the_interval() -> None:
    schedule = Schedule(first_step=0, exchange_from=0, exchanges=0, keep_every=10, interval=4)
    found = []
    for step in range(25):
        if schedule.is_due(step):
            found.append(step)
            schedule.begins(step)
            schedule.committed(step, interval=4)
    assert found == [0, 4, 8, 10, 14, 18, 20, 24]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5)), min_size=1, max_size=30), st.randoms(use_true_random=False))
def test_ranks_of_any_speed_choose_the_same_states(verdicts: list[tuple[bool, int]], chance: random.Random) -> None:
    """Each rank hears a verdict at some moment between its announcement and the beginning of the next state's protection."""

    def chosen() -> list[int]:
        schedule, found, open_step = Schedule(first_step=0, exchange_from=0, exchanges=0), list[int](), -1

        def hear() -> None:
            nonlocal open_step
            committed, interval = verdicts[(len(found) - 1) % len(verdicts)]
            if open_step >= 0:
                schedule.committed(open_step, interval) if committed else schedule.refused(open_step)
            open_step = -1

        for step in range(100):
            if chance.random() < 0.5:
                hear()
            if schedule.is_due(step):
                hear()
                schedule.begins(step)
                found.append(step)
                open_step = step
        return found

    assert chosen() == chosen()


def test_an_exchange_that_was_due_in_a_refused_state_is_due_in_the_next() -> None:
    schedule = Schedule(first_step=5, exchange_from=5, exchanges=2)
    schedule.committed(5)
    assert schedule.exchange_is_due(6)
    schedule.refused(6)
    assert schedule.exchange_is_due(7)
    schedule.committed(7)
    assert not schedule.exchange_is_due(8)


def test_after_a_recovery_the_first_state_is_as_it_was() -> None:
    for settled in (False, True):
        schedule = Schedule(first_step=9, exchange_from=10, exchanges=1, compare_every=50, settled=settled)
        assert [schedule.exchange_is_due(9), schedule.comparison_is_due(9)] == [False, True]
        schedule.committed(9)
        assert [schedule.exchange_is_due(10), schedule.comparison_is_due(10)] == [True, settled]
        schedule.committed(10)
        assert [schedule.exchange_is_due(11), schedule.comparison_is_due(11)] == [False, False]


def test_exchanges_come_back_now_and_then_also_behind_a_pause() -> None:
    schedule = Schedule(first_step=0, exchange_from=0, exchanges=1)
    schedule.committed(0)
    assert not schedule.exchange_is_due(EXCHANGE_EVERY_STEPS - 1)
    assert schedule.exchange_is_due(EXCHANGE_EVERY_STEPS + 7)
    schedule.committed(EXCHANGE_EVERY_STEPS + 7)
    assert not schedule.exchange_is_due(EXCHANGE_EVERY_STEPS + 8)


def test_comparisons_every_so_many_steps_and_not_in_the_first_exchanges() -> None:
    schedule = Schedule(first_step=0, exchange_from=0, exchanges=1, compare_every=4)
    due = []
    for step in range(11):
        due += [step] if schedule.comparison_is_due(step) else []
        schedule.committed(step)
    assert due == [1, 4, 8]
    schedule.refused(12)
    assert schedule.comparison_is_due(13)
    assert not Schedule(first_step=0, exchange_from=0, exchanges=0).comparison_is_due(4)


def test_no_exchange_but_the_first_passes_without_a_comparison() -> None:
    """A copy that has been corrupted since the last one would be taken for one of its rank's own, and never compared again."""
    schedule = Schedule(first_step=0, exchange_from=0, exchanges=1, compare_every=100, keep_every=EXCHANGE_EVERY_STEPS)
    for step in range(EXCHANGE_EVERY_STEPS):
        schedule.committed(step)
    assert schedule.exchange_is_due(EXCHANGE_EVERY_STEPS)
    assert schedule.comparison_is_due(EXCHANGE_EVERY_STEPS)


def test_a_state_that_is_asked_for_as_a_checkpoint_is_compared() -> None:
    schedule = Schedule(first_step=0, exchange_from=0, exchanges=2, compare_every=100)
    schedule.committed(0)
    schedule.asked()
    assert not schedule.comparison_is_due(1)
    schedule.committed(1)
    schedule.committed(2)
    schedule.asked()
    assert schedule.comparison_is_due(3)
    schedule.refused(3)
    assert schedule.comparison_is_due(5)
    schedule.committed(5)
    assert not schedule.comparison_is_due(6)
