"""Which loop may follow which."""

import pytest

from deadpool.host.errors import ConfigError
from deadpool.trainer_hooks.loop import Loops


def after(*untils: int) -> Loops:
    """All these loops have come to their ends."""
    loops = Loops()
    for until in untils:
        loops.begin(None, until)
        loops.ended(until)
    return loops


@pytest.mark.parametrize("start", [None, 8])
def test_a_loop_goes_on_where_the_one_before_has_ended(start: int | None) -> None:
    loops = after(4, 8)
    loops.begin(start, 12)
    assert (loops.start, loops.until, loops.is_first) == (8, 12, False)


def test_the_first_one_begins_where_it_likes_and_may_have_no_step() -> None:
    loops = Loops()
    loops.begin(5, 5)
    assert (loops.start, loops.until, loops.is_first) == (5, 5, True)
    loops.ended(5)
    loops.begin(None, 6)
    assert loops.start == 5


@pytest.mark.parametrize(
    ("start", "until", "given"),
    [
        pytest.param(None, 4, "until=4", id="the same end: each epoch counts from 0"),
        pytest.param(0, 4, "start=0, until=4", id="from 0 again"),
        pytest.param(0, 8, "start=0, until=8", id="another start"),
        pytest.param(5, 8, "start=5, until=8", id="a gap"),
    ],
)
def test_steps_count_on(start: int | None, until: int, given: str) -> None:
    with pytest.raises(
        ConfigError, match=f"steps count on .* goes on at step 4, and {given} is given; make until larger"
    ) as told:
        after(4).begin(start, until)
    assert "\n" not in str(told.value)


def test_a_loop_that_was_left_is_the_last() -> None:
    loops = Loops()
    loops.begin(None, 4)
    with pytest.raises(ConfigError, match="the loop of steps 0 to 4 was left before its end"):
        loops.begin(None, 8)
    loops.ended(3)  # finish() came too early
    with pytest.raises(ConfigError, match="left before its end"):
        loops.begin(4, 8)
