"""Re-forming groups under real ranks, the quick part; the whole table is in test_groups_table.py."""

from collections.abc import Iterator

import pytest
from groups_cases import Cases, group_cases


@pytest.fixture(scope="module")
def cases() -> Iterator[Cases]:
    with group_cases() as cases:
        yield cases


def test_one_rank_breaks_in_backward(cases: Cases) -> None:
    answer = cases.run(kind="zero", who=[2], where="backward", **{"break": "break"})
    assert answer["generation"] >= 2
    assert answer["losses"] == cases.unbroken("zero")


def test_killed_rank_is_replaced_by_a_joiner(cases: Cases) -> None:
    answer = cases.run(kind="zero", who=[2], **{"break": "kill"})
    unbroken = cases.unbroken("zero")
    for rank, losses in answer["losses"].items():
        assert losses == {step: unbroken[rank][step] for step in losses}


def test_a_plain_exit_does_not_hang_or_crash(cases: Cases) -> None:
    answer = cases.run(kind="ddp", exit="plain")
    assert answer["exit_codes"] == [0, 0, 0, 0]
