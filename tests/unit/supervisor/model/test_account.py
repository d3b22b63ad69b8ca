"""Every second of the job is of one kind."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadpool.supervisor.model.account import KINDS, TimeAccount


def test_what_was_found_out_late_was_no_productive_time() -> None:
    account = TimeAccount()
    account.book("starting", 3, now_s=100.0)
    account.book("starting", 3, now_s=104.0)
    account.book("productive", 3, now_s=134.0)
    account.was_recovering(130.0)
    account.book("recovering", 2, now_s=135.0)
    now = account.so_far("productive", 3, now_s=145.0, stalled_s=2.0)
    assert (now.starting, now.productive, now.recovering, now.stalled) == (4.0, 34.0, 5.0, 2.0)
    assert now.wall_s == 45.0
    assert now.node_s == 3 * 34 + 2 * 1 + 3 * 10
    assert now.goodput == pytest.approx(34 / 45)
    assert now.charged(2) == pytest.approx(2 * 34 / 134)


def test_steps_done_again_are_no_new_ones() -> None:
    account = TimeAccount()
    account.book("again", 1, now_s=0.0)
    account.book("again", 1, now_s=5.0)
    account.book("productive", 1, now_s=6.0)
    account.was_recovering(2.0)  # further back than what was productive
    assert account.spent_s["again"] == 2.0
    assert account.spent_s["recovering"] == 4.0


@given(
    moves=st.lists(st.tuples(st.sampled_from(KINDS), st.floats(-1, 10), st.floats(0, 10)), max_size=20),
    stalled_s=st.floats(0, 20),
)
def test_it_sums_to_the_wall_clock(moves: list[tuple[str, float, float]], stalled_s: float) -> None:
    """Also where a clock reading is a little older than the last, and where a failure began before anything was booked."""
    account, now_s = TimeAccount(), 50.0
    account.book("assembling", 1, now_s=now_s)
    for kind, later_s, back_s in moves:
        account.book(kind, 1, now_s=now_s + later_s)
        now_s = max(now_s, now_s + later_s)
        account.was_recovering(now_s - back_s)
    found = account.so_far("productive", 1, now_s=now_s, stalled_s=stalled_s)
    assert found.wall_s == pytest.approx(now_s - 50.0)
    assert min(getattr(found, kind) for kind in KINDS) >= -1e-9
    assert 0 <= found.goodput <= 1 + 1e-9


def test_nothing_has_happened() -> None:
    empty = TimeAccount().so_far("assembling", 0, now_s=7.0, stalled_s=0.0)
    assert (empty.wall_s, empty.goodput, empty.charged(4)) == (0.0, 0.0, 0.0)
