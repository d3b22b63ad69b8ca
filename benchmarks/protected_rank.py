"""One rank's protection with nothing else around it: slots in /dev/shm, a holder in another process, a world of one rank.

The holder is this file, run by itself: it prints its port and ends when its standard input is closed. With an address to listen
on it prints an empty line first, and waits for one: meanwhile it may be given a network.
"""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

import torch
from torch import nn
from torch._C._distributed_c10d import HashStore

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from deadpool.agent.vault.folder import Vault
from deadpool.agent.vault.replica_server import ReplicaServer
from deadpool.host.vault_folders import vault_folder
from deadpool.proto.messages import NO_STEP, Endpoint
from deadpool.proto.vault.slots import StateId
from deadpool.proto.vault.transport import ReplicaSender
from deadpool.trainer_hooks.protection.boundary import Boundary, Captured
from deadpool.trainer_hooks.protection.commit import CommitBoard
from deadpool.trainer_hooks.protection.copy_engine import CpuEngine
from deadpool.trainer_hooks.protection.counters import Counters
from deadpool.trainer_hooks.protection.edge_client import EdgeClient
from deadpool.trainer_hooks.protection.holders import Holders
from deadpool.trainer_hooks.protection.interval import Interval, StepTimes
from deadpool.trainer_hooks.protection.outgoing import OutgoingState, Stamp
from deadpool.trainer_hooks.protection.peers import Exchange, RankPlace, Sharing
from deadpool.trainer_hooks.protection.pipeline import ProtectionPlan, Protector
from deadpool.trainer_hooks.protection.ports import Network
from deadpool.trainer_hooks.protection.replicate import VaultClient
from deadpool.trainer_hooks.protection.schedule import Schedule
from deadpool.trainer_hooks.protection.slots import OpenSlot, OwnSlots, capacity
from deadpool.trainer_hooks.protection.snapshot import Local
from deadpool.trainer_hooks.protection.verify import Verdict
from deadpool.trainer_hooks.state.training_state import TrainingState

TOKEN = "benchmark"
META_BYTES = 64 << 10  # more than this state's metadata
SETTLING_STATES = 3  # whose copies a training waits for, and in which memory is touched for the first time


def tensors(size_bytes: int, tensor_bytes: int, frozen_share: float) -> nn.ParameterList:
    """Returns float32 parameters of `size_bytes` together, of which the first `frozen_share` (0..1) is never trained."""
    sizes = [min(tensor_bytes, size_bytes - begin) for begin in range(0, size_bytes, tensor_bytes)]
    parameters, begin = nn.ParameterList(), 0
    for size in sizes:
        trained = begin + size > frozen_share * size_bytes
        parameters.append(nn.Parameter(torch.rand(size // 4), requires_grad=trained))
        begin += size
    return parameters


class HolderProcess:
    """A neighbour's agent, as far as replicas go."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )  # a process of its own: it shares no interpreter lock with the rank
        assert self._process.stdout is not None
        self.endpoint = Endpoint(node_id="holder", host="127.0.0.1", port=int(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate("")


class ProtectedRank:
    """Trains `parameters` by adding to them; `holders`: where its replicas go, by so many connections each (0: auto).

    `every`: which states `run_step` keeps, as --snapshot-every (0: auto). `by_pair`: replicas travel by an MPI pair, where
    there is one (mpi_pair.py).
    """

    def __init__(
        self,
        parameters: nn.ParameterList,
        holders: list[Endpoint],
        connections: int = 1,
        every: int = 1,
        *,
        by_pair: bool = False,
    ) -> None:
        self.model = nn.Module()
        self.model.weights = parameters
        self.trained = [each for each in parameters if each.requires_grad]
        self.state = TrainingState(models={"model": self.model}, optimizers={}, extra={})
        held = self.state.held()
        self.size_bytes = sum(each.tensor.nbytes for each in held)
        self.slot_bytes, _ = capacity(self.size_bytes, len(held), META_BYTES)
        self.vault = Vault.create(Path("/dev/shm"), f"benchmark-{id(self):x}", "rank")
        self.vault.reserve_snapshots(0, self.slot_bytes, 0)
        self.slots = OwnSlots(self.vault.folder, 0, CpuEngine())
        self.counters, self.step = Counters(), 0
        self.handed_over_s = 0.0  # when the newest state was, monotonic
        self.commits: list[int] = []
        self._cancelled = threading.Event()
        store = HashStore()
        clients: list[ReplicaSender] = [VaultClient(endpoint, TOKEN, connections) for endpoint in holders]
        if by_pair:
            clients = [EdgeClient(self.vault.folder, at, client) for at, client in zip(holders, clients, strict=True)]
        self._again = Holders(clients, self._cancelled)
        network = Network(
            board=CommitBoard(store, rank=0, ranks=range(1)),
            holders=clients,
            exchange=Exchange(store, rank=0, ranks=range(1), place=RankPlace("rank", "rank", 1), cancelled=self._cancelled),
            cancelled=self._cancelled,
        )
        self.pace, interval = StepTimes(), Interval(every)
        local = Local(slots=lambda: self.slots, engine=CpuEngine(), sharing=Sharing(), counters=self.counters, interval=interval)
        plan = ProtectionPlan(rank=0, generation=1, commit_step=NO_STEP)
        schedule = Schedule(first_step=0, exchange_from=0, exchanges=1, interval=max(1, every))
        self.protector = Protector(plan, schedule, local, network, self, lambda: interval.wished(self.pace.step_s()))

    def train_step(self, compute_s: float = 0.0) -> Boundary:
        """Computes (waits), steps the optimizer (behind the fence), and hands the new state over. Returns its boundary."""
        self._compute(compute_s)
        return self._hand_over()

    def run_step(self, compute_s: float) -> None:
        """The same as in a job: a state that is not due is passed over (protection/controller.py)."""
        self._compute(compute_s)
        self.protector.fence()
        self.pace.boundary(stalled_s=self.counters.exposed_stall_s, now_s=time.monotonic())
        if self.protector.is_due(self.step):
            self._hand_over()
        else:
            self.protector.pass_over(self.step)
            self.step += 1

    def _compute(self, compute_s: float) -> None:
        time.sleep(compute_s)
        self.protector.fence()
        with torch.no_grad():
            for parameter in self.trained:
                parameter.add_(1)

    def _hand_over(self) -> Boundary:
        captured = Captured(self.state.held())
        boundary = Boundary(
            state=StateId(generation=1, step=self.step),
            captured=captured,
            sources=captured.sources(),
            versions=captured.versions(),
            meta=self.state.capture_meta(),
        )
        self.step += 1
        self.handed_over_s = time.monotonic()
        self.protector.submit(boundary)
        return boundary

    def send_again(self, slot: OpenSlot) -> None:
        """Sends a committed state to the holders once more; while the protect thread has nothing to do."""
        stamp = Stamp(rank=0, state=slot.state, keep_step=NO_STEP, sender_generation=1)
        self._again.send(OutgoingState.of(slot, stamp))

    @property
    def newest(self) -> StateId:
        return StateId(generation=1, step=self.step - 1)

    def settle(self) -> None:
        """Trains until every slot, here and at the holders, has been written once."""
        for _ in range(SETTLING_STATES):
            self.train_step()
            self.wait_committed()

    def wait_committed(self) -> None:
        if not self.protector.wait_done(self.step - 1, 120.0):
            raise RuntimeError(f"step {self.step - 1} was not committed in 120 s")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.protector.close()
        self.vault.remove()

    # ------------------------------------------------------------ said by the protect thread

    def committed(self, step: int) -> None:
        self.commits.append(step)

    def refused(self, step: int, reason: str) -> None:
        print(f"step {step} is not protected: {reason}", file=sys.stderr)

    def differs(self, step: int, verdict: Verdict, good_step: int) -> None: ...

    def failed(self, error: Exception) -> None:
        print(f"protection has failed: {error}", file=sys.stderr)


def folder_of(holder: Endpoint) -> Path:
    """Returns the vault of a HolderProcess, which is on this machine."""
    return vault_folder(Path("/dev/shm"), f"benchmark-{holder.port}", "holder")


def hold(host: str = "127.0.0.1") -> None:
    server = ReplicaServer(host, TOKEN)
    vault = Vault.create(Path("/dev/shm"), f"benchmark-{server.port}", "holder")
    try:
        server.start(vault.folder)
        print(server.port, flush=True)
        sys.stdin.read()
    finally:
        server.close()
        vault.remove()


def main() -> None:
    if len(sys.argv) == 1:
        hold()
        return
    print(flush=True)
    sys.stdin.readline()
    hold(sys.argv[1])


if __name__ == "__main__":
    main()
