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


@pytest.mark.parametrize("groups", ["kept", "destroyed", "first"])
def test_groups_made_in_steps_by_survivors_and_a_joiner(cases: Cases, groups: str) -> None:
    """The survivors have made them in eight steps when the rank is killed, the joiner in the two that it rehearses."""
    kind = f"ddp+{groups}"
    answer = cases.run(kind=kind, who=[2], at=8, steps=14, where="backward", **{"break": "kill"})
    unbroken = cases.unbroken(kind, 14)
    for rank, losses in answer["losses"].items():
        assert losses == {step: unbroken[rank][step] for step in losses}
        assert str(13) in losses


def test_groups_made_in_steps_that_are_discarded(cases: Cases) -> None:
    answer = cases.run(kind="ddp+kept", who=[0, 2], steps=14, overtakes=2, **{"break": "break"})
    assert answer["losses"] == cases.unbroken("ddp+kept", 14)


def test_a_plain_exit_does_not_hang_or_crash(cases: Cases) -> None:
    answer = cases.run(kind="ddp", exit="plain")
    assert answer["exit_codes"] == [0, 0, 0, 0]
