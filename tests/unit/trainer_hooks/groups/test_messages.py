"""Which messages are kept, and how a rehearsal is answered with them."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from deadpool.trainer_hooks.groups import messages
from deadpool.trainer_hooks.groups.messages import Messages, small_message


def whole(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def asked(kept: Messages, key: str, like: torch.Tensor) -> torch.Tensor | None:
    target = torch.zeros_like(like)
    return target if kept.answer(key, [target]) else None


@pytest.mark.parametrize(
    ("operation", "args", "way"),
    [
        ("recv", ([whole(1)], 3, 0), "recv/3"),
        ("recv_anysource", ([torch.zeros(4, dtype=torch.uint8)], 0), "recv_anysource/"),
        ("broadcast", ([whole(1)], SimpleNamespace(rootRank=2)), "broadcast/2"),
        ("broadcast", ([whole(1)], 2), "broadcast/2"),
        ("broadcast", ([whole(1)], SimpleNamespace(rootRank=1)), None),  # by the rank itself
        ("allgather", ([[whole(1), whole(2)]], [whole(3)], object()), "allgather/"),
        ("allreduce", ([torch.tensor(True)], object()), "allreduce/"),
        ("allreduce", ([torch.ones(1)], object()), None),
        ("recv", ([torch.zeros(messages.BYTES_MAX + 1, dtype=torch.uint8)], 3, 0), None),
        ("send", ([whole(1)], 3, 0), None),
        ("barrier", (object(),), None),
        ("allgather", ([], []), None),
    ],
)
def test_which_messages_are_kept(operation: str, args: tuple[Any, ...], way: str | None) -> None:
    found = small_message(operation, 1, args)
    assert (found[0] if found else None) == way


def test_a_joiner_sees_what_its_predecessor_saw_in_the_same_order() -> None:
    before, joiner = Messages(), Messages()
    for value in (1, 2):
        before.keep("pp#0/recv/0", [whole(value)])
    before.keep("pp#0/recv/0", [torch.tensor([7, 8, 9], dtype=torch.uint8)])
    before.keep("dp#0/allreduce/", [torch.tensor(True)])
    joiner.load_state_dict(before.state_dict())
    assert asked(joiner, "pp#0/recv/0", whole(0)) == whole(1)
    object_bytes = asked(joiner, "pp#0/recv/0", torch.zeros(3, dtype=torch.uint8))
    assert object_bytes is not None
    assert object_bytes.tolist() == [7, 8, 9]  # what does not fit is passed over
    assert asked(joiner, "pp#0/recv/0", whole(0)) == whole(2)  # no more has come: as the last that fits
    assert asked(joiner, "pp#0/recv/0", torch.zeros(2, dtype=torch.uint8)) is None
    assert asked(joiner, "dp#0/allreduce/", torch.tensor(False)) == torch.tensor(True)
    assert asked(joiner, "dp#0/recv/1", whole(0)) is None
    assert joiner.state_dict() == before.state_dict()  # for who comes after it


def test_who_resumes_from_a_file_has_heard_the_first_ones_itself() -> None:
    """It has built its model with live groups; what its rehearsal asks for came after that."""
    before, again = Messages(), Messages()
    for value in (1, 2, 3):
        before.keep("all#0/broadcast/0", [whole(value)])
    again.keep("all#0/broadcast/0", [whole(1)])
    again.load_state_dict(before.state_dict())
    assert asked(again, "all#0/broadcast/0", whole(0)) == whole(2)


def test_a_step_that_is_made_again_is_kept_once() -> None:
    kept = Messages()
    kept.keep("k", [whole(1)])
    boundary = kept.state_dict()
    kept.keep("k", [whole(2)])  # in a step that is discarded
    kept.load_state_dict(boundary)
    kept.keep("k", [whole(2)])
    joiner = Messages()
    joiner.load_state_dict(kept.state_dict())
    assert [asked(joiner, "k", whole(0)) for _ in range(3)] == [whole(1), whole(2), whole(2)]


def test_only_the_first_ones_are_kept_and_without_a_gap() -> None:
    kept = Messages()
    for value in range(messages.KEPT_MAX + 9):
        kept.keep("k", [whole(value)])
    kept.load_state_dict(kept.state_dict())
    kept.keep("k", [whole(-1)])
    big = torch.zeros(messages.BYTES_MAX, dtype=torch.uint8)
    for _ in range(9):
        kept.keep("big", [big])
    joiner = Messages()
    joiner.load_state_dict(kept.state_dict())
    seen = [asked(joiner, "k", whole(0)) for _ in range(messages.KEPT_MAX)]
    assert seen == [whole(value) for value in range(messages.KEPT_MAX)]
    assert asked(joiner, "k", whole(0)) == whole(messages.KEPT_MAX - 1)
    assert len(json.loads(joiner.state_dict()["messages"])["big"]) == messages.TOTAL_BYTES_MAX // messages.BYTES_MAX - 1
