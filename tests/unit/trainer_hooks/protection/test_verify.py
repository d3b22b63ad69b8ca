"""Which rank differs, and who says so."""

import threading

import pytest
from torch._C._distributed_c10d import HashStore

from deadpool.trainer_hooks.protection.verify import Verdict, Verifier, compare

KEYS = {"model/a": 1, "model/b": 2}


def tables(a: str, b: str) -> dict[int, dict[int, int]]:
    """Returns each rank's table; rank r holds of each item what the r-th letter stands for."""
    return {rank: {1: ord(a[rank]), 2: ord(b[rank])} for rank in range(len(a))}


def everybody(count: int) -> dict[int, dict[str, tuple[int, ...]]]:
    return {rank: {key: tuple(each for each in range(count) if each != rank) for key in KEYS} for rank in range(count)}


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("xxxx", "yyyy", None),
        ("xxxz", "yyyy", Verdict(ranks=(3,), item="model/a", majority=True, teller=0)),
        ("xxxx", "zyyy", Verdict(ranks=(0,), item="model/b", majority=True, teller=1)),
        ("xxzz", "yyyy", Verdict(ranks=(0, 1, 2, 3), item="model/a", majority=False, teller=0)),
        ("wxyz", "wwxy", Verdict(ranks=(0, 1, 2, 3), item="model/b", majority=False, teller=0)),
        ("wxyz", "wxyz", None),  # each its own: no fault, the script's will
        ("xz", "yy", Verdict(ranks=(0, 1), item="model/a", majority=False, teller=0)),
        ("xxzz", "yyyw", Verdict(ranks=(3,), item="model/b", majority=True, teller=0)),  # what is certain comes first
    ],
)
def test_verdicts_are_the_same_on_every_rank(a: str, b: str, expected: Verdict | None) -> None:
    for rank in range(len(a)):
        assert compare(tables(a, b), rank, KEYS, everybody(len(a))[rank]) == expected


def test_what_only_one_rank_holds_cannot_differ() -> None:
    assert compare(tables("xz", "yw"), 0, KEYS, {}) is None


def test_ranks_meet_in_the_store() -> None:
    store, found, cancelled = HashStore(), {}, threading.Event()
    sums = {"model/a": 5, "buffer/mean": 7}

    def run(rank: int) -> None:
        verifier = Verifier(store, rank=rank, ranks=range(3), cancelled=cancelled)
        peers = {key: tuple({0, 1, 2} - {rank}) for key in sums}
        mine = {"model/a": 5 + (rank == 2), "buffer/mean": rank}
        found[rank] = verifier.verdict(2, sums, peers), verifier.verdict(4, mine, peers)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    expected = Verdict(ranks=(2,), item="model/a", majority=True, teller=0)
    assert found == dict.fromkeys(range(3), (None, expected))
