"""DDP's layout of buckets goes back to what it was in any state, from any other, and what it sums is right."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket, HashStore
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from deadpool.host.errors import ConfigError, SnapshotError
from deadpool.trainer_hooks.ddp_reducers import DdpReducers

INPUTS = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def wrapped(**options: Any) -> DistributedDataParallel:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 4))
    return DistributedDataParallel(model, bucket_cap_mb=0.002, **options)


def gradients(ddp: DistributedDataParallel, model: nn.Module) -> list[Tensor]:
    torch.autograd.backward(model(INPUTS).sum())
    found = [parameter.grad.clone() for parameter in ddp.parameters() if parameter.grad is not None]
    for parameter in ddp.parameters():
        parameter.grad = None
    return found


@pytest.mark.parametrize(
    "options", [{}, {"static_graph": True}, {"gradient_as_bucket_view": True}], ids=["plain", "static", "bucket-view"]
)
def test_every_condition_is_reached_from_every_other(options: dict[str, Any]) -> None:
    first, second = wrapped(**options), wrapped(**options)
    trained, other = DdpReducers({"model": first}), DdpReducers({"model": second})
    states = [trained.state_dict()]
    for _ in range(4):
        gradients(first, first)
        states.append(trained.state_dict())
    assert [state["model"]["made"] for state in states][-1]
    for state in (*states, *reversed(states)):
        other.load_state_dict(state)
        other.settle()
        assert other.state_dict() == state
    for state in states:
        other.load_state_dict(state)
        other.settle()
        for _ in range(3):
            assert all(map(torch.equal, gradients(second, second), gradients(second, second.module)))
        assert other.state_dict() == states[-1]


def test_gradients_that_a_state_has_are_still_there_afterwards() -> None:
    ddp = wrapped()
    reducers = DdpReducers({"model": ddp})
    before = reducers.state_dict()
    torch.autograd.backward(ddp(INPUTS).sum())
    waiting = [parameter.grad.clone() for parameter in ddp.parameters() if parameter.grad is not None]
    reducers.load_state_dict(before)
    reducers.settle()
    assert len(waiting) == 6
    for parameter, gradient in zip(ddp.parameters(), waiting, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bucket-view": {"gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
}


def noted(ddp: DistributedDataParallel) -> list[int]:
    """Returns a list that grows with every bucket that the DDP sums."""
    seen: list[int] = []

    def hook(_: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        seen.append(bucket.index())
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    ddp.register_comm_hook(None, hook)
    return seen


@pytest.mark.parametrize("left", ["before its backward", "within its backward"])
@pytest.mark.parametrize(
    ("kind", "passes"), [(kind, passes) for kind in KINDS for passes in (0, 1, 3) if (kind, passes) != ("static", 0)]
)
def test_a_pass_that_was_left_in_the_middle_is_over(kind: str, left: str, passes: int) -> None:
    """The next backward sums if it is meant to, and not within no_sync(), where it would sum a part; waiting gradients stay.

    With static_graph torch cannot begin within no_sync().
    """
    ddp = wrapped(**KINDS[kind])
    seen, reducers = noted(ddp), DdpReducers({"model": ddp})
    for _ in range(passes):
        gradients(ddp, ddp)
    state = reducers.state_dict()
    with ddp.no_sync():
        torch.autograd.backward(ddp(INPUTS).sum())
    waiting = [parameter.grad.clone() for parameter in ddp.parameters() if parameter.grad is not None]
    loss = ddp(INPUTS).sum()
    if left == "within its backward":
        seen.clear()
        for parameter in ddp.parameters():
            parameter.grad = None
        leave = ddp.module[0].bias.register_hook(lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            torch.autograd.backward(loss)
        leave.remove()
        for parameter, value in zip(ddp.parameters(), waiting, strict=True):
            parameter.grad = value.clone()
    reducers.load_state_dict(state)
    reducers.settle()
    assert reducers.state_dict() == state
    assert all(
        parameter.grad is not None and torch.equal(parameter.grad, value)
        for parameter, value in zip(ddp.parameters(), waiting, strict=True)
    )
    seen.clear()
    with ddp.no_sync():
        torch.autograd.backward(ddp(INPUTS).sum())
    assert not seen
    gradients(ddp, ddp)
    assert seen


@pytest.mark.parametrize("waits", [False, True])
def test_which_parameters_have_been_used_is_what_it_was(waits: bool) -> None:
    """With find_unused_parameters: what no pass since the last sum has used keeps the gradient that it has, or none."""
    model = nn.ModuleDict({"one": nn.Linear(16, 4), "other": nn.Linear(16, 4)})
    chosen = ["other"]
    model.forward = lambda inputs: model[chosen[0]](inputs)
    ddp = DistributedDataParallel(model, find_unused_parameters=True)
    seen, reducers = noted(ddp), DdpReducers({"model": ddp})
    saved, other = [reducers.state_dict()], list(model["other"].parameters())
    with ddp.no_sync():
        torch.autograd.backward(ddp(INPUTS).sum())
    saved.append(reducers.state_dict())
    waiting = [each.grad for each in other]
    ddp.zero_grad()
    chosen[0] = "one"
    for each, gradient in zip(other, waiting, strict=True):
        each.grad = gradient
    torch.autograd.backward(ddp(INPUTS).sum())
    assert reducers.state_dict() == saved[0]
    ddp.zero_grad()
    if waits:
        for each, gradient in zip(other, waiting, strict=True):
            each.grad = gradient
    reducers.load_state_dict(saved[waits])
    reducers.settle()
    seen.clear()
    torch.autograd.backward(ddp(INPUTS).sum())
    used = ddp.reducer._get_local_used_map()
    assert [bool(each) for each in used] == [True, True, waits, waits]
    assert seen
    assert [each.grad is not None for each in other] == [waits, waits]


def test_forwards_that_the_reducer_does_not_see() -> None:
    """A pipeline runs every forward within no_sync(), and prepares the reducer for the last backward of a step itself."""
    ddp = wrapped()
    reducers = DdpReducers({"model": ddp})
    for _ in range(2):
        with ddp.no_sync():
            loss = ddp(INPUTS).sum()
        ddp.reducer.prepare_for_backward([loss])
        torch.autograd.backward(loss)
    assert reducers.state_dict()["model"]["made"]


def test_sparse_gradients() -> None:
    model = nn.Sequential(nn.Embedding(16, 16, sparse=True), nn.Linear(16, 4))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.0005)
    reducers = DdpReducers({"model": ddp})
    for _ in range(2):
        torch.autograd.backward(ddp(torch.tensor([1, 2])).sum())
    made = reducers.state_dict()
    assert made["model"]["made"]
    ddp(torch.tensor([1, 2]))  # left in the middle
    for condition in (made, {"model": {"passes": 1, "made": False, "order": "2 1 0"}}, made):
        reducers.load_state_dict(condition)
        reducers.settle()
        assert reducers.state_dict() == condition


def test_an_order_that_the_process_would_not_have_come_to_itself() -> None:
    ddp = wrapped()
    reducers = DdpReducers({"model": ddp})
    rank_0s = {"model": {"passes": 0, "made": True, "order": "0 2, 1 3 5 4"}}
    reducers.load_state_dict(rank_0s)
    reducers.settle()
    assert reducers.state_dict() == rank_0s


def test_a_communication_hook_lives_on() -> None:
    ddp = wrapped()
    seen = []

    def hook(state: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        seen.append(bucket.index())
        return bf16_compress_hook(dist.group.WORLD, bucket)  # type: ignore[arg-type]

    ddp.register_comm_hook(None, hook)
    reducers = DdpReducers({"model": ddp})
    gradients(ddp, ddp)
    reducers.load_state_dict({"model": {"passes": 0, "made": False, "order": ""}})
    reducers.settle()
    seen.clear()
    gradients(ddp, ddp)
    assert seen


def test_a_hook_with_a_state_of_its_own_is_refused() -> None:
    ddp = wrapped()
    ddp.register_comm_hook(PowerSGDState(None), powerSGD_hook)
    with pytest.raises(ConfigError, match=r"DDP model.0 has the communication hook powerSGD_hook, which keeps a state"):
        DdpReducers({"model": nn.Sequential(ddp)})


def test_what_cannot_be_brought_back_is_said() -> None:
    ddp = wrapped()
    reducers = DdpReducers({"model": ddp})
    ddp.module[0].weight.requires_grad_(False)
    reducers.load_state_dict({"model": {"passes": 1, "made": False, "order": "5 4 3 2 1 0"}})
    with pytest.raises(SnapshotError, match="frozen"):
        reducers.settle()


def test_a_parameter_that_ddp_does_not_know_is_no_bug_of_ddps() -> None:
    """Unfrozen, or added, after the wrapping: DDP refuses to be made anew around it, and says that this is its own fault."""
    ddp = wrapped()
    reducers = DdpReducers({"model": ddp})
    ddp.module.late = nn.Linear(2, 2)
    reducers.load_state_dict({"model": {"passes": 1, "made": False, "order": "5 4 3 2 1 0"}})
    with pytest.raises(SnapshotError, match="unfrozen, or added, after it was wrapped"):
        reducers.settle()


def test_a_ddp_that_looks_for_unused_parameters_keeps_its_layout() -> None:
    ddp = wrapped(find_unused_parameters=True)
    reducers = DdpReducers({"model": ddp})
    before = reducers.state_dict()
    gradients(ddp, ddp)
    assert reducers.state_dict() == before


def made(**options: Any) -> dict[str, Any]:
    """Returns what a process records of its DDP once that has its own layout."""
    ddp = wrapped(**options)
    reducers = DdpReducers({"model": ddp})
    for _ in range(4):
        gradients(ddp, ddp)
    return reducers.state_dict()


@pytest.mark.parametrize(
    ("options", "steps"), [({}, 2), ({"static_graph": True}, 3), ({"find_unused_parameters": True}, 0)], ids=str
)
def test_a_new_process_has_its_predecessors_layout_before_it_steps_or_after_so_many_steps(
    options: dict[str, Any], steps: int
) -> None:
    recorded, ddp = made(**options), wrapped(**options)
    reducers = DdpReducers({"model": ddp})
    assert reducers.settled_as(recorded)
    assert reducers.state_dict() == recorded
    ddp = wrapped(**options)
    reducers = DdpReducers({"model": ddp})
    assert reducers.steps_to_layout() == steps
    for _ in range(steps):
        assert reducers.state_dict() != recorded
        gradients(ddp, ddp)
    assert reducers.state_dict() == recorded


def test_a_new_process_makes_its_layout_by_steps_where_nothing_is_known_or_it_cannot_be_given() -> None:
    reducers, recorded = DdpReducers({"model": wrapped()}), made()
    assert not reducers.settled_as(None)
    assert not reducers.settled_as({"another": recorded["model"]})
    assert not reducers.settled_as(DdpReducers({"model": wrapped()}).state_dict()), "the predecessor had not made it either"
    with_hook = wrapped()
    hook: Any = with_hook.module[0].weight
    reducers = DdpReducers({"model": with_hook})
    hook.register_post_accumulate_grad_hook(lambda _: None)
    assert not reducers.settled_as(recorded)
    assert DdpReducers({}).settled_as(None)
