"""A joiner alone: construction and steps with muted groups run without any peer, and every collective has an answer."""

from collections.abc import Iterator
from datetime import timedelta
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from groups_rank import Trainer
from torch._C._distributed_c10d import TCPStore

from deadpool.host.errors import UnavailableError
from deadpool.trainer_hooks.groups import muted
from deadpool.trainer_hooks.groups.generation import Generation
from deadpool.trainer_hooks.groups.group import NOT_FORWARDED, Group, collectives
from deadpool.trainer_hooks.groups.inner import InnerGroup
from deadpool.trainer_hooks.groups.registry import Groups
from deadpool.trainer_hooks.groups.works import MutedWork

RANK, SIZE = 1, 4


@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    reports: list[str] = []
    groups = Groups(record=None, host="127.0.0.1", on_broken=lambda _, error: reports.append(error))
    groups.init_default(rank=RANK, world_size=SIZE, generation=7, store=None)
    yield groups
    groups.close()
    dist.destroy_process_group()
    assert reports == []


def own(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape) + 1


def whole(_: Groups) -> Any:
    """The default group; its own methods, because torch deprecates function names faster than it renames them."""
    return dist.group.WORLD


def test_every_method_of_the_installed_torch_is_handled() -> None:
    inherited = set(dir(dist.ProcessGroup)) - set(dir(object)) - {"_pybind11_conduit_v1_"}
    inherited -= {name for name in inherited if isinstance(getattr(dist.ProcessGroup, name), dist.ProcessGroup.BackendType)}
    inherited -= {"BackendType"}
    handled = {name for name in inherited if name in vars(Group)}
    assert inherited - handled - set(NOT_FORWARDED) == set()
    assert set(NOT_FORWARDED) <= inherited | {
        "merge_remote_group",
        "split_group",
        "use_pg_for_symm_mem_rendezvous",
    }  # not all releases


def test_every_collective_of_the_installed_torch_has_an_answer() -> None:
    assert len(collectives()) > 15
    assert set(collectives()) <= muted.KNOWN


def test_muted_state(groups: Groups) -> None:
    assert groups.muted
    assert not groups.broken
    assert groups.generation == 7
    groups.break_generation(7, "an order that comes during construction")
    assert groups.muted


def test_answers_in_tensors(groups: Groups) -> None:
    tensor = own(3)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    assert torch.equal(tensor, own(3))
    slots = [torch.zeros(3) for _ in range(SIZE)]
    dist.all_gather(slots, tensor)
    assert all(torch.equal(slot, tensor) for slot in slots)
    output = torch.zeros(SIZE, 3)
    whole(groups)._allgather_base(output, tensor).wait()
    assert torch.equal(output, tensor.expand(SIZE, 3))
    given, chunk = own(SIZE, 3), torch.zeros(3)
    whole(groups)._reduce_scatter_base(chunk, given)
    assert torch.equal(chunk, given[RANK])
    dist.reduce_scatter(chunk.zero_(), list(given))
    assert torch.equal(chunk, given[RANK])
    received = torch.zeros(SIZE, 3)
    dist.all_to_all_single(received, given)
    assert torch.equal(received, given)
    dist.recv(tensor, 0)
    assert dist.recv(tensor) != RANK
    dist.send(tensor, 0)
    assert torch.equal(tensor, own(3))


def test_answer_into_a_slice_of_itself(groups: Groups) -> None:
    """FSDP2 gathers from a part of its own output."""
    output = torch.zeros(SIZE * 2)
    output[2 * RANK : 2 * RANK + 2] = own(2)
    whole(groups)._allgather_base(output, output[2 * RANK : 2 * RANK + 2])
    assert torch.equal(output, own(2).repeat(SIZE))


def test_answers_keep_versions_and_gradients_out(groups: Groups) -> None:
    parameter = torch.nn.Parameter(torch.zeros(SIZE))
    version = parameter._version
    whole(groups)._allgather_base(parameter, torch.ones(1))
    assert parameter._version == version
    assert torch.equal(parameter.data, torch.ones(SIZE))


def test_works_and_futures(groups: Groups) -> None:
    tensor = own(2)
    work: Any = dist.all_reduce(tensor, async_op=True)
    assert work.is_completed()
    assert work.wait(timedelta(seconds=1))
    assert work.exception() is None
    (value,) = work.get_future().value()
    assert value is tensor


def test_object_collectives(groups: Groups) -> None:
    gathered: list[Any] = [None] * SIZE
    dist.all_gather_object(gathered, {"mine": 1})
    assert gathered == [{"mine": 1}] * SIZE
    sent = ["kept"]
    dist.broadcast_object_list(sent, RANK)
    assert sent == ["kept"]
    received: list[Any] = ["placeholder"]
    dist.broadcast_object_list(received, 0)  # nobody says how long the object is
    assert received == [None]
    scattered: list[Any] = [None]
    dist.scatter_object_list(scattered, [f"for {rank}" for rank in range(SIZE)], RANK)
    assert scattered == [f"for {RANK}"]
    dist.scatter_object_list(scattered, None, 0)
    dist.gather_object("mine", None, 0)
    everyone: list[Any] = [None] * SIZE
    dist.gather_object("mine", everyone, RANK)
    assert everyone == ["mine"] * SIZE


def test_barriers_and_batches(groups: Groups) -> None:
    dist.barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=1))
    ops = [dist.P2POp(dist.isend, own(2), 0), dist.P2POp(dist.irecv, own(2), 2)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


class Counting(dist.ProcessGroup):
    """An inner group that can coalesce, as NCCL's, and notes what it is asked."""

    def __init__(self) -> None:
        super().__init__(RANK, SIZE)  # type: ignore[call-arg]
        self.asked: list[str] = []

    def _get_backend(self, device: torch.device) -> Any:
        return SimpleNamespace(supports_coalescing=True)

    def _start_coalescing(self, device: torch.device) -> None:
        self.asked.append("start")

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        self.asked.append("end")
        return MutedWork([], 0)

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> dist.Work:
        self.asked.append(f"send to {peer}")
        return MutedWork(tensors, 0)

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> dist.Work:
        self.asked.append(f"receive from {peer}")
        return MutedWork(tensors, 0)


def test_a_batch_is_coalesced_where_the_inner_group_can(groups: Groups) -> None:
    """One by one, two stages that send to each other would both wait for ever on NCCL."""
    group: Any = dist.group.WORLD
    inner, generation = Counting(), Generation(1, lambda _generation, _error: None)
    group.attach(InnerGroup(inner, [], None, group.membership, ""), generation, "counted")
    ops = [dist.P2POp(dist.isend, own(2), 0), dist.P2POp(dist.irecv, own(2), 2)]
    works = dist.batch_isend_irecv(ops)
    assert inner.asked == ["start", "send to 0", "receive from 2", "end"]
    assert len(works) == 1
    works[0].wait()
    group.detach()


def test_a_group_keeps_the_options_that_the_script_has_given_it(groups: Groups) -> None:
    options = SimpleNamespace(is_high_priority_stream=True)
    made = SimpleNamespace(
        group_id="made", group_rank=0, group_size=1, global_ranks_in_group=[RANK], timeout=timedelta(seconds=9)
    )
    assert groups.create(made, options).membership.nccl_options is options
    assert groups.create(made, None).membership.nccl_options is None


def test_new_groups_with_their_store_barrier(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DIST_INIT_BARRIER", "1")
    group = dist.new_group([0, RANK])
    assert isinstance(group, Group)
    assert (group.rank(), group.size()) == (1, 2)
    dist.destroy_process_group(group)


@pytest.mark.parametrize("kind", ["ddp", "zero", "fsdp", "tp-fsdp"])
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")
def test_construction_and_steps_alone(groups: Groups, kind: str) -> None:
    """Three steps: DDP rebuilds its buckets, with a broadcast, in the second."""
    trainer = Trainer(kind)
    for step in range(3):
        loss = trainer.step(step, lambda: False)
        assert loss == loss, "rehearsal should not run on NaN"


def test_a_reform_that_nobody_joins_is_given_up(groups: Groups) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with pytest.raises(UnavailableError, match="generation 7"):
        groups.reform(generation=7, store=store, timeout_s=0.3, cancelled=Event())
    cancelled = Event()
    cancelled.set()
    with pytest.raises(UnavailableError, match="cancelled"):
        groups.reform(generation=8, store=store, timeout_s=60, cancelled=cancelled)
    assert groups.muted
    dist.barrier()
