"""The whole table: what breaks, where, under DDP, ZeRO, FSDP2 and TP+FSDP2. The losses are the unbroken run's, to the bit.

Each pair of columns meets in what always runs; the rest of the table runs when named: -m long.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from groups_cases import Cases, group_cases

pytestmark = pytest.mark.e2e  # minutes, all together
KINDS = ("ddp", "zero", "fsdp", "tp-fsdp")


def crossed(first: dict[str, Any], second: dict[str, Any]) -> list[Any]:
    """Returns kind x first x second; every other cell is `long`: the rest still holds each pair."""
    cells = itertools.product(enumerate(KINDS), enumerate(first.items()), enumerate(second.items()))
    return [
        pytest.param(kind, one, other, id=f"{kind}-{name}-{place}", marks=[pytest.mark.long] if (i + j + k) % 2 else [])
        for (i, kind), (j, (name, one)), (k, (place, other)) in cells
    ]


WHERE = {"forward": "forward", "backward": "backward"}


@pytest.fixture(scope="module")
def cases() -> Iterator[Cases]:
    with group_cases() as cases:
        yield cases


@pytest.mark.parametrize(("kind", "who", "where"), crossed({"all-break": [0, 1, 2, 3], "one-breaks": [2]}, WHERE))
def test_break_in_the_middle_of_a_step(cases: Cases, kind: str, who: list[int], where: str) -> None:
    answer = cases.run(kind=kind, who=who, where=where, **{"break": "break"})
    assert answer["generation"] >= 2
    assert answer["losses"] == cases.unbroken(kind)


@pytest.mark.parametrize(("kind", "failure", "where"), crossed({"kill": "kill", "stop": "stop"}, WHERE))
def test_peer_lost_and_replaced_by_a_joiner(cases: Cases, kind: str, failure: str, where: str) -> None:
    """SIGKILL closes the peer's connections; SIGSTOP leaves them open and silent, and only the order gets survivors out."""
    answer = cases.run(kind=kind, who=[2], where=where, **{"break": failure})
    unbroken = cases.unbroken(kind)
    for rank, losses in answer["losses"].items():
        assert losses == {step: unbroken[rank][step] for step in losses}
        assert set(losses) >= {str(step) for step in range(3 if rank == "2" else 0, 8)}


@pytest.mark.parametrize("kind", ["ddp", "zero", "tp-fsdp"])
def test_breaks_at_random_moments(cases: Cases, kind: str) -> None:
    """Of one set of processes: in steps, in reforms, in restores. Threads and descriptors do not grow."""
    answer = cases.run(kind=kind, breaks=8, within_s=0.02, steps=100_000, logs=True, **{"break": "random"})
    unbroken = cases.unbroken(kind, 50)
    for rank, losses in answer["losses"].items():
        shared = set(losses) & set(unbroken[rank])
        assert {step: losses[step] for step in shared} == {step: unbroken[rank][step] for step in shared}
    assert answer["generation"] >= 9
    for early, late in answer["held"] if "are stuck" not in answer["logs"] else []:  # a stuck group is kept aside
        assert late["descriptors"] <= early["descriptors"], "descriptors leak"
        assert late["threads"] <= early["threads"] + 4, "threads leak"


@pytest.mark.parametrize("seed", range(2))
def test_failures_during_the_recovery(cases: Cases, seed: int) -> None:
    """Each plan is overtaken by a newer generation while groups open, are open, or the first step runs."""
    answer = cases.run(kind="zero", who=[2], overtakes=5, seed=seed, **{"break": "break"})
    assert answer["generation"] >= 7
    assert answer["losses"] == cases.unbroken("zero")
