"""What we use of torch's insides is there, and does what we take it for."""

from torch._dynamo import trace_rules

from deadpool.trainer_hooks import torch_internals
from deadpool.trainer_hooks.groups.group import Group


def test_dynamo_leaves_our_functions_alone() -> None:
    torch_internals.hide_from_dynamo("deadpool")
    assert trace_rules.check(Group.allreduce)
    assert trace_rules.check(Group.attach)
