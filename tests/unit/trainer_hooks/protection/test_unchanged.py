"""What has not changed is neither copied nor sent again; whatever was written, and how, both copies have the bytes of it."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy
import pytest
import torch
from fake_pair import fake_pair
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from replicas import join_threads
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore

from deadpool.agent.vault.replica_server import ReplicaServer
from deadpool.proto.config import Transport
from deadpool.proto.messages import NO_STEP, Endpoint, SlotKind, Source, SourceKind
from deadpool.proto.secret import make_token
from deadpool.proto.vault.layout import SLOT_NAMES, TURNS, reserve, slot_path
from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.protection import lanes
from deadpool.trainer_hooks.protection.boundary import Boundary, Captured
from deadpool.trainer_hooks.protection.commit import CommitBoard
from deadpool.trainer_hooks.protection.copy_engine import CpuEngine
from deadpool.trainer_hooks.protection.counters import Counters
from deadpool.trainer_hooks.protection.edge_client import EdgeClient
from deadpool.trainer_hooks.protection.gather import Gather
from deadpool.trainer_hooks.protection.peers import Exchange, RankPlace, Sharing
from deadpool.trainer_hooks.protection.pipeline import ProtectionPlan, Protector
from deadpool.trainer_hooks.protection.ports import Network
from deadpool.trainer_hooks.protection.replicate import VaultClient
from deadpool.trainer_hooks.protection.restore import from_elsewhere
from deadpool.trainer_hooks.protection.schedule import Schedule
from deadpool.trainer_hooks.protection.slots import OwnSlots
from deadpool.trainer_hooks.protection.snapshot import Local
from deadpool.trainer_hooks.protection.vaults import Vaults
from deadpool.trainer_hooks.protection.verify import Verdict
from deadpool.trainer_hooks.state.training_state import TrainingState

TOKEN = make_token()
LARGE, SMALL = 300_000, 50  # numbers in a tensor: copied in steps, and together with others; more than STREAMED_BYTES in all
LANES = 3
FOREACH, FUSED = ({"foreach": True}, {"fused": True})
SEVERAL = 3  # connections
ANY_WAY = pytest.mark.parametrize("way", [Transport.TCP, Transport.MPI, SEVERAL])
Way = Transport | int


@pytest.fixture(autouse=True)
def by_several_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "WORTH_BYTES", 1 << 20)


class Interrupted(CpuEngine):
    """Something happens once, when small tensors are about to be gathered."""

    happens: Callable[[], object] | None = None

    def gather(self, gather: Gather, addresses: NDArray[numpy.uint64], file: int, offset: int) -> None:
        happens, self.happens = self.happens, None
        if happens is not None:
            happens()
        super().gather(gather, addresses, file, offset)


class Training:
    """A rank of its own, with a frozen and a trained part of each size. Every state is protected when it is complete."""

    def __init__(self, folder: Path, server: ReplicaServer, optimizer: dict[str, bool], way: Way) -> None:
        self.model = self.new_model()
        self.trained = [parameter for name, parameter in self.model.named_parameters() if name.startswith("trained")]
        self.optimizer = torch.optim.Adam(self.trained, lr=0.1, **optimizer)  # type: ignore[arg-type]
        self.step()
        self.captured = Captured([])
        self.state = TrainingState(models={"model": self.model}, optimizers={"optimizer": self.optimizer}, extra={})
        size_bytes = 2 * sum(held.tensor.nbytes for held in self.state.held()) + (1 << 20)
        for name in SLOT_NAMES:
            reserve(slot_path(folder, SlotKind.SNAPSHOT, 0, name), size_bytes)
        self.slots, self.counters, self.cancelled = OwnSlots(folder, 0, CpuEngine()), Counters(), threading.Event()
        self.holder = Endpoint(node_id="holder", host="127.0.0.1", port=server.port)
        self.committed_steps: list[int] = []
        by_tcp = VaultClient(self.holder, TOKEN, SEVERAL if way == SEVERAL else 1)
        store = HashStore()
        network = Network(
            board=CommitBoard(store, rank=0, ranks=range(1)),
            holders=[EdgeClient(folder, self.holder, by_tcp) if way is Transport.MPI else by_tcp],
            exchange=Exchange(store, rank=0, ranks=range(1), place=RankPlace("node", "node", 1), cancelled=self.cancelled),
            cancelled=self.cancelled,
        )
        self.engine = Interrupted()
        local = Local(slots=lambda: self.slots, engine=self.engine, sharing=Sharing(), counters=self.counters, lanes=LANES)
        plan = ProtectionPlan(rank=0, generation=1, commit_step=NO_STEP)
        self.protector = Protector(plan, Schedule(first_step=0, exchange_from=0, exchanges=1), local, network, self)

    @staticmethod
    def new_model() -> nn.Module:
        model = nn.Module()
        for name, size in (("frozen", LARGE), ("frozen_small", SMALL), ("trained", LARGE), ("trained_small", SMALL)):
            trained = name.startswith("trained")
            model.register_parameter(name, nn.Parameter(torch.rand(size), requires_grad=trained))
        model.register_buffer("buffer", torch.rand(SMALL))
        return model

    def step(self) -> None:
        for parameter in self.trained:
            parameter.grad = torch.rand_like(parameter)
        self.optimizer.step()

    def protect(self, number: int, *, compare: bool = True) -> bool:
        """Protects the state as it is now, and returns whether it was committed; `compare`: then both copies have its bytes."""
        self.protector.fence()
        self.state.step_begins()
        self.state.optimizer_steps(self.optimizer)
        held = self.state.held()
        if not self.captured.is_of(held, ()):
            self.captured = Captured(held)
        captured, before = self.captured, {each.key: each.tensor.clone() for each in held}
        boundary = Boundary(
            state=StateId(generation=1, step=number),
            captured=captured,
            sources=captured.sources(),
            versions=captured.versions(),
            meta=self.state.capture_meta(),
        )
        self.protector.submit(boundary)
        assert self.protector.wait_done(number, 30.0)
        if number not in self.committed_steps or not compare:
            return number in self.committed_steps
        slot = self.slots.find_whole(boundary.state)
        assert slot is not None
        assert all(torch.equal(copy, before[key]) for key, copy in slot.tensors().items())
        assert all(torch.equal(copy, before[key]) for key, copy in self.at_the_holder(number).items())
        return True

    def at_the_holder(self, number: int) -> dict[str, Tensor]:
        model = self.new_model()
        trained = [parameter for name, parameter in model.named_parameters() if name.startswith("trained")]
        state = TrainingState(models={"model": model}, optimizers={"optimizer": torch.optim.Adam(trained)}, extra={})
        from_elsewhere(
            state, Source(rank=0, kind=SourceKind.REPLICA, slot_generation=1, endpoint=self.holder), number, Vaults(token=TOKEN)
        )
        return {held.key: held.tensor for held in state.held()}

    def moved(self) -> tuple[int, int]:
        return self.counters.copied_bytes, self.counters.replicated_bytes

    # ------------------------------------------------------------ said by the protect thread

    def committed(self, step: int) -> None:
        self.committed_steps.append(step)

    def refused(self, step: int, reason: str) -> None:
        assert not reason or "may have been changed while it was copied" in reason or "is not what it was" in reason

    def differs(self, step: int, verdict: Verdict, good_step: int) -> None:
        raise AssertionError(verdict)

    def failed(self, error: Exception) -> None:
        raise error


@contextmanager
def protected(folder: Path, optimizer: dict[str, bool], way: Way = Transport.TCP) -> Iterator[Training]:
    """Enters with a training whose slots, here and at the holder, have been written twice."""
    own, other = folder / "own", folder / "other"
    own.mkdir()
    other.mkdir()
    server = ReplicaServer("127.0.0.1", TOKEN)
    server.start(other)
    training = Training(own, server, optimizer, way)
    try:
        with fake_pair(own, other, "holder") if way is Transport.MPI else nullcontext():
            for number in range(4):
                training.step()
                assert training.protect(number)
            yield training
    finally:
        training.protector.close()
        server.close()
        join_threads("deadpool-protect")


def write_a_view(tensor: Tensor) -> None:
    tensor.detach()[3:5].add_(1)


def write_data(tensor: Tensor) -> None:
    tensor.data.mul_(2)


def write_the_last_number(tensor: Tensor) -> None:
    tensor.data[-1:].neg_()


def assign_data(tensor: Tensor) -> None:
    tensor.data = tensor.data * 3


def assign_the_same(tensor: Tensor) -> None:
    tensor.data = tensor.data.clone()


def set_memory(tensor: Tensor) -> None:
    with torch.no_grad():
        tensor.set_(torch.rand(tensor.shape))  # type: ignore[call-overload]


def move_the_memory(tensor: Tensor) -> None:
    """As sending it to another process by torch.multiprocessing does: the same storage lies elsewhere."""
    tensor.untyped_storage().share_memory_()
    tensor.data.mul_(2)


def write_as_a_collective_does(tensor: Tensor) -> None:
    tensor.detach().numpy()[1] += 1


def write_by_foreach(tensor: Tensor) -> None:
    torch._foreach_add_([tensor.data], 1.0)


def write_and_go_back(tensor: Tensor) -> None:
    tensor.data.neg_().neg_()


WRITES = [
    write_a_view, write_data, write_the_last_number, assign_data, assign_the_same, set_memory, move_the_memory,
    write_as_a_collective_does, write_by_foreach, write_and_go_back,
]  # fmt: skip
NAMES = ["frozen", "frozen_small", "trained", "trained_small", "buffer"]
STEPS = st.lists(
    st.tuples(st.booleans(), st.lists(st.tuples(st.sampled_from(WRITES), st.sampled_from(NAMES)), max_size=3)), max_size=5
)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, optimizer=st.sampled_from([FOREACH, FUSED]))
@ANY_WAY
def test_whatever_was_written_how_the_copies_have_the_bytes_of_the_state(
    tmp_path_factory: pytest.TempPathFactory, way: Way,
    steps: list[tuple[bool, list[tuple[Callable[[Tensor], None], str]]]], optimizer: dict[str, bool],
) -> None:  # fmt: skip
    with protected(tmp_path_factory.mktemp("vaults"), optimizer, way) as training:
        committed = 0
        for number, (optimized, writes) in enumerate(steps, 4):
            if optimized:
                training.step()
            for write, name in writes:
                write(getattr(training.model, name))
            committed += training.protect(number)
        quiet = max(training.protect(number) for number in range(4 + len(steps), 9 + len(steps)))
        assert quiet  # a state that was refused is followed by a pause, and by one that is committed


@pytest.mark.parametrize("write", WRITES)
def test_each_way_of_writing_is_seen(tmp_path: Path, write: Callable[[Tensor], None]) -> None:
    with protected(tmp_path, FUSED) as training:
        for number, name in enumerate(NAMES, 4):
            write(getattr(training.model, name))
            training.protect(number)
        quiet = max(training.protect(number) for number in range(4 + len(NAMES), 9 + len(NAMES)))
        assert quiet  # the copies have the very bytes of whatever is committed


@pytest.mark.parametrize("move", [lambda storage: storage.share_memory_(), lambda storage: storage.resize_(1 << 16)])
def test_memory_that_moves_before_it_is_gathered_is_noticed(
    tmp_path: Path, move: Callable[[torch.UntypedStorage], object]
) -> None:
    """The same storage lies elsewhere, and what was there belongs to somebody else."""
    with protected(tmp_path, FUSED) as training:
        training.step()
        storage = training.model.get_parameter("trained_small").untyped_storage()
        training.engine.happens = lambda: move(storage)
        assert not training.protect(4)
        assert max(training.protect(number) for number in range(5, 9))


@ANY_WAY
def test_frozen_bytes_are_moved_no_more(tmp_path: Path, way: Way) -> None:
    with protected(tmp_path, FOREACH, way) as training:
        frozen = training.model.get_parameter("frozen").nbytes
        whole = sum(held.tensor.nbytes for held in training.state.held())
        before = training.moved()
        training.step()
        assert training.protect(4)
        copied, sent = (now - then for now, then in zip(training.moved(), before, strict=True))
        assert whole - frozen - 1000 <= copied <= whole - frozen
        assert whole - frozen - 1000 <= sent <= whole - frozen + 1000  # with what lies between two small items


@ANY_WAY
def test_a_state_in_which_nothing_has_changed_moves_nothing(tmp_path: Path, way: Way) -> None:
    with protected(tmp_path, FOREACH, way) as training:
        for number in range(4, 7):  # both slots have these bytes then
            training.protect(number)
        before = training.moved()
        assert training.protect(7)
        assert training.moved() == before


def test_a_slot_that_was_made_unusable_is_written_whole(tmp_path: Path) -> None:
    with protected(tmp_path, FOREACH) as training:
        whole = sum(held.tensor.nbytes for held in training.state.held())
        training.slots.discard(StateId(generation=1, step=2))
        copied, _ = training.moved()
        assert training.protect(4)
        assert training.moved()[0] == copied + whole


@ANY_WAY
def test_what_goes_bad_in_a_slot_that_is_not_written_is_noticed_in_turns_and_written_again(tmp_path: Path, way: Way) -> None:
    with protected(tmp_path, FOREACH, way) as training:
        for number in (4, 5):
            assert training.protect(number)
        frozen = training.model.get_parameter("frozen").detach().numpy().tobytes()[:64]
        files = [path.open("r+b", buffering=0) for path in (*tmp_path.glob("own/snapshot-*"), *tmp_path.glob("other/replica-*"))]
        places = [file.read().index(frozen) for file in files]
        for file, place in zip(files, places, strict=True):
            os.pwrite(file.fileno(), bytes([frozen[0] ^ 1]), place)

        def healed() -> bool:
            return all(os.pread(file.fileno(), 64, place) == frozen for file, place in zip(files, places, strict=True))

        number, last = 6, 6 + 4 * TURNS
        while number < last and not healed():
            training.protect(number, compare=False)
            number += 1
        for file in files:
            file.close()
        assert number < last
        assert any(training.protect(last + more) for more in range(4))
