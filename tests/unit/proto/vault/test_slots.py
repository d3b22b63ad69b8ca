"""Two slots are enough: the newest committed state is never overwritten."""

from hypothesis import given
from hypothesis import strategies as st

from deadpool.proto.messages import NO_STEP
from deadpool.proto.vault.slots import StateId, slot_to_write


def state(step: int, generation: int = 1) -> StateId:
    return StateId(generation=generation, step=step)


def test_an_empty_slot_is_written_first() -> None:
    assert slot_to_write([state(3), None], 3) == 1
    assert slot_to_write([None, None], NO_STEP) == 0


def test_the_committed_state_stays() -> None:
    assert slot_to_write([state(3), state(4)], 3) == 1
    assert slot_to_write([state(5), state(4)], 4) == 0


def test_of_two_copies_of_a_step_the_older_generation_goes() -> None:
    assert slot_to_write([state(4, 2), state(4, 1)], 4) == 1


@given(
    st.lists(st.one_of(st.none(), st.builds(state, st.integers(0, 5), st.integers(1, 3))), min_size=2, max_size=2),
    st.integers(-1, 5),
)
def test_a_slot_is_found_and_never_the_only_copy_of_the_committed_step(held: list[StateId | None], keep_step: int) -> None:
    index = slot_to_write(held, keep_step)
    chosen, other = held[index], held[1 - index]
    if chosen is not None and chosen.step == keep_step:
        assert other is not None
        assert other.step == keep_step
