"""Ranks as bytes are a set like any other."""

from deadpool.supervisor.model.rank_bytes import RankBytes


def test_it_is_a_set() -> None:
    ranks = RankBytes.all(5)
    other = ranks.copy()
    for rank in (0, 3, 3):
        ranks.discard(rank)
    assert (list(ranks), len(ranks), len(other)) == ([1, 2, 4], 3, 5)
    assert [rank in ranks for rank in (-1, 0, 3, 4, 5)] == [False, False, False, True, False]
    assert ranks - {1} == {2, 4}
    assert ranks == RankBytes(5, [4, 2, 1])
    assert ranks != other
    assert ranks <= {1, 2, 4, 7}
    assert not ranks <= {1, 2}
    ranks |= {0, 1}
    assert sorted(ranks) == [0, 1, 2, 4]
    assert not RankBytes(5)
