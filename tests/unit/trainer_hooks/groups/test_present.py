"""Which calls of a group have a result without some of its members, and what the inner group is given."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from deadpool.trainer_hooks.groups.inner import Membership
from deadpool.trainer_hooks.groups.present import NeedsAllError, Present, among

GROUP = (4, 5, 6, 7)  # its ranks
WITHOUT_5 = frozenset({5})


def present(own: int = 0) -> Present:
    found = among(GROUP, own, WITHOUT_5)
    assert found is not None
    return found


def reduced(op: Any, tensor: Tensor, options: Any = None) -> Tensor:
    """Returns what the inner group is given to reduce."""
    options = options or dist.AllreduceOptions()
    options.reduceOp = op
    ((given, _), _) = present().fit("allreduce", ([tensor], options), {})
    found: Tensor = given[0]
    return found


def test_a_group_whose_members_are_all_there_is_called_as_it_is() -> None:
    assert among(GROUP, 0, frozenset({3, 8})) is None


def test_the_inner_group_has_the_members_present() -> None:
    membership = Membership(name="g", rank=2, size=4, global_ranks=GROUP, devices=("cpu",))
    inner = membership.inner(among(membership.ranks, membership.rank, WITHOUT_5))
    assert (inner.rank, inner.size, inner.global_ranks) == (1, 3, (4, 6, 7))
    world = Membership(name="w", rank=2, size=3, global_ranks=(), devices=("cpu",))
    inner = world.inner(among(world.ranks, world.rank, frozenset({0})))
    assert (inner.rank, inner.size, inner.global_ranks) == (1, 2, ())


def test_sums_of_floating_point_numbers_are_scaled_in_place_so_that_a_quarter_of_them_is_the_mean() -> None:
    tensor = torch.tensor([3.0])
    given = reduced(dist.ReduceOp.SUM, tensor)
    assert given is tensor
    assert given.tolist() == [4.0]
    assert ((given[0] * 3) / 4).item() == 3.0


@pytest.mark.parametrize("op", [dist.ReduceOp.AVG, dist.ReduceOp.MAX, dist.ReduceOp.MIN])
def test_what_is_no_sum_is_of_those_present(op: Any) -> None:
    assert reduced(op, torch.tensor([3.0])).tolist() == [3.0]


def test_whole_numbers_are_counted_of_those_present() -> None:
    assert reduced(dist.ReduceOp.SUM, torch.tensor([3])).tolist() == [3]


def test_no_gradient_and_no_version_shows_the_scaling() -> None:
    tensor = torch.ones(1, requires_grad=True)
    version = tensor._version
    reduced(dist.ReduceOp.SUM, tensor)
    assert (tensor._version, tensor.requires_grad) == (version, True)


def test_a_sum_for_another_root_leaves_this_ranks_numbers_alone() -> None:
    options, tensor = dist.ReduceOptions(), torch.tensor([3.0])  # by default it sums
    options.rootRank = 2
    (given, inner_options), _ = present().fit("reduce", ([tensor], options), {})
    assert (given[0].tolist(), tensor.tolist(), inner_options.rootRank, options.rootRank) == ([4.0], [3.0], 1, 2)
    (given, _), _ = present(own=2).fit("reduce", ([tensor], options), {})
    assert given[0] is tensor


def test_roots_and_peers_are_named_by_their_place_among_those_present() -> None:
    options = dist.BroadcastOptions()
    options.rootRank = 3
    (_, inner_options), _ = present().fit("broadcast", ([torch.ones(1)], options), {})
    assert inner_options.rootRank == 2
    assert present().fit("broadcast", (torch.ones(1), 2), {})[0][1] == 1
    assert present().fit("send", ([torch.ones(1)], 3, 9), {})[0][1:] == (2, 9)
    assert present().fit("barrier", (dist.BarrierOptions(),), {})[1] == {}


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("broadcast", ([torch.ones(1)], 1)),
        ("recv", ([torch.ones(1)], 1, 0)),
        ("allgather", ([[torch.ones(1)] * 4], [torch.ones(1)])),
        ("_reduce_scatter_base", (torch.ones(1), torch.ones(4))),
    ],
)
def test_what_needs_a_missing_member_says_so(operation: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(NeedsAllError, match=rf"^{operation} needs rank 5$") as caught:
        present().fit(operation, arguments, {})
    assert caught.value.ranks == (5,)
