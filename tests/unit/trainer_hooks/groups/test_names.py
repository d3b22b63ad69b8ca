"""GroupNames of groups: the same on all members, whatever each process has made before."""

import pytest

from deadpool.trainer_hooks.groups.names import GroupNames, numbered, ranks_text


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((), "all"),
        ((3,), "3"),
        ((0, 5), "0,5"),
        (range(8), "0-7"),
        (range(1, 16, 2), "1-15:2"),
        ((0, 1, 5), "0,1,5"),
    ],
)
def test_a_set_of_ranks_as_text(ranks: range, text: str) -> None:
    assert ranks_text(ranks) == text


def test_the_text_of_many_ranks_is_short_and_its_own() -> None:
    many = [rank for rank in range(1024) if rank % 7]
    texts = {ranks_text(many), ranks_text(many[1:]), ranks_text(many[:-1])}
    assert len(texts) == 3
    assert max(map(len, texts)) < 24


def test_groups_of_the_same_ranks_are_numbered_in_the_order_of_their_making() -> None:
    assert numbered(["all", "0,2", "0-3", "0,2", "all"]) == ["all#0", "0,2#0", "0-3#0", "0,2#1", "all#1"]


def test_those_made_later_count_on_from_what_was_opened_again() -> None:
    """A survivor that holds eight and a joiner that holds two have opened two again."""
    names = GroupNames({"0-3": 2})
    assert [names.next("0-3"), names.next("0-3"), names.next("0,2")] == [("0-3#2", 3), ("0-3#3", 4), ("0,2#0", 1)]
