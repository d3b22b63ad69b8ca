"""Which groups stay open when two real ranks break in the midst of this or that; that they are fit for use is checked there."""

import pytest
from kept_groups import GROUPS, kept_on_both_ranks

ALL = list(range(GROUPS))


@pytest.fixture(scope="module")
def kept() -> dict[str, tuple[list[int], list[int]]]:
    return kept_on_both_ranks()


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("idle", ALL),
        ("inside", [0]),
        ("begun_by_both", ALL),
        ("connection_lost", ALL[1:]),
        ("wrong_use", [0, 1, *ALL[3:]]),
        ("called_past_the_wrapper", [0, *ALL[2:]]),
        ("failed_reform", ALL),
        ("made_in_a_step", [*ALL, GROUPS]),
        ("destroyed_by_both", ALL),
        ("destroyed_by_one", []),
    ],
)
def test_exactly_those_stay_open_in_which_nothing_is_unmatched(
    kept: dict[str, tuple[list[int], list[int]]], scenario: str, expected: list[int]
) -> None:
    assert kept[scenario] == (expected, expected)
