"""One rank of the matrix: takes the cells' trainings through recoveries with the real guard, slots, replicas and groups.

Two of these are a job of two nodes of one rank. There is no agent and no supervisor: both ranks follow the same scenario, so each
knows when a generation ends and what the plan is. A way back leads from S_k+1 to S_k, or to S_k+1 itself where the state is still
live; whatever is seen of a state, or of a step, for a second time must be what was seen first.
"""

import contextlib
import faulthandler
import gc
import logging
import os
import shutil
import signal
import threading
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from matrix_pieces import Meshes, Training, build
from torch._C._distributed_c10d import TCPStore

from deadpool.agent.vault.replica_server import ReplicaServer
from deadpool.host.errors import ConfigError
from deadpool.proto.call_record import CallRecord, record_path
from deadpool.proto.config import Keeping
from deadpool.proto.messages import (
    Endpoint,
    Peer,
    Placement,
    ProtectionChanged,
    Quiesce,
    RankBroken,
    RankFailed,
    RankMessage,
    RankOrder,
    Reform,
    Role,
    SlotKind,
    Source,
    SourceKind,
)
from deadpool.proto.vault.layout import SLOT_NAMES, SlotFile, reserve, slot_path
from deadpool.trainer_hooks.checkpoints.format import CheckpointRun, complete, write_part
from deadpool.trainer_hooks.drill.digests import table_of
from deadpool.trainer_hooks.drill.tables import Table, differences
from deadpool.trainer_hooks.fault_injection import PendingInjections
from deadpool.trainer_hooks.groups.registry import Groups
from deadpool.trainer_hooks.guard import RankGuard
from deadpool.trainer_hooks.predecessor import predecessor
from deadpool.trainer_hooks.protection.copy_engine import CpuEngine
from deadpool.trainer_hooks.protocol import Member
from deadpool.trainer_hooks.session import Session
from deadpool.trainer_hooks.state.training_state import TrainingState

WORLD = 2
STEPS = 6
PATIENCE_S = 60.0
_PATIENCE = timedelta(seconds=PATIENCE_S)
TOKEN = "0" * 64  # of both


class Node:
    """What outlives a cell: the control store, the groups, the meshes. `generation`: the newest."""

    def __init__(self, rank: int, port: int, folder: Path) -> None:
        self.rank, self.folder = rank, folder
        self.control = TCPStore("127.0.0.1", port, is_master=False, timeout=_PATIENCE)
        self.generation = 1
        self.stores: list[TCPStore] = []
        self.store_port = 0
        self.groups = Groups(record=None, host="127.0.0.1", on_broken=self._on_broken)
        self.session: CellSession | None = None
        self.cell = 0
        self.new_store()
        client = TCPStore("127.0.0.1", self.store_port, is_master=False, timeout=_PATIENCE)
        self.groups.init_default(rank=rank, world_size=WORLD, generation=1, store=client, timeout=_PATIENCE)
        self.meshes = Meshes()

    def new_store(self) -> None:
        """Opens the rendezvous store of the newest generation."""
        key = f"store/{self.generation}"
        if self.rank == 0:
            self.stores = [*self.stores[-1:], TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
            self.control.set(key, str(self.stores[-1].port))
        self.store_port = int(self.control.get(key))

    def meet(self, what: str) -> None:
        """Returns when both ranks are here."""
        key = f"meet/{self.generation}/{self.cell}/{what}"
        self.control.set(f"{key}/{self.rank}", "")
        self.control.get(f"{key}/{1 - self.rank}")

    def share(self, what: str, value: str) -> list[str]:
        """Returns what both ranks say."""
        key = f"share/{self.cell}/{what}"
        self.control.set(f"{key}/{self.rank}", value)
        return [self.control.get(f"{key}/{rank}").decode() for rank in range(WORLD)]

    def _on_broken(self, generation: int, error: str) -> None:
        if self.session is not None:
            self.session.broken(generation, error)


class RecoveryFailedError(Exception):
    """The rank says that it could not reform its groups, or not restore its state."""


class _Line:
    """In place of the line to the agent: what the rank reports leads to nothing, the scenario knows. `problem`: reported last."""

    def __init__(self) -> None:
        self.problem = ""

    def send(self, message: RankMessage) -> None:
        match message:
            case RankFailed(phase=phase, error=error):
                self.problem = f"could not {phase}: {error}"
            case ProtectionChanged(reason=reason) if reason:
                self.problem = f"unprotected: {reason}"
            case RankBroken(error=error):
                self.problem = f"a collective failed: {error}"

    def close(self) -> None:
        pass


class CellSession(Session):
    """A process' place in a job without an agent. `plan(generation)`: what the supervisor would answer."""

    def __init__(self, node: Node, vault: Path, keeping: Keeping, role: Role, plan: Callable[[], Reform]) -> None:
        self._start_without_role(vault, f"node{node.rank}", keeping, TOKEN, repeatable=False)
        self.groups = node.groups
        self.injections = PendingInjections(lambda: None)
        self.line = _Line()
        self._link = self.line  # type: ignore[assignment]
        self.role = self._role = role
        self.rank, self.world_size = node.rank, WORLD
        self.member = Member(rank=node.rank, generation=role.generation, joiner=role.muted)
        self.record = CallRecord(record_path(vault, node.rank), create=True)
        self._make_plan, self._planned = plan, 0
        if role.muted:
            self.inherit(predecessor(vault, role.placement, TOKEN))

    def order(self, order: RankOrder) -> None:
        self._on_order(order)

    def broken(self, generation: int, error: str) -> None:
        self._on_broken(generation, error)

    def leave(self) -> None:
        """The process ends: so does its protect thread."""
        if self._protection is not None:
            self._protection.close()

    def await_plan(self) -> Reform:
        if self._plan is None:
            plan = self._make_plan()
            if plan.generation == self._planned:
                raise RecoveryFailedError(self.line.problem)
            self._planned = plan.generation
            self.order(plan)
        return super().await_plan()

    def reserve(self, snapshot_bytes: int, replica_bytes: int) -> None:
        for name in SLOT_NAMES:
            reserve(slot_path(self.vault_dir, SlotKind.SNAPSHOT, self.rank, name), snapshot_bytes)


class ContradictionError(Exception):
    """Something is not what it was when it was seen first."""


class Cell:
    """One training of the matrix, on this rank."""

    def __init__(self, node: Node, parallel: str, pieces: list[str], folder: Path) -> None:
        self.node, self.parallel, self.pieces, self.folder = node, parallel, pieces, folder
        self.vault = folder / f"vault{node.rank}"
        self.vault.mkdir(parents=True)
        self.server = ReplicaServer("127.0.0.1", TOKEN)
        self.server.start(self.vault)
        ports = node.share("vault", str(self.server.port))
        self.endpoints = [Endpoint(node_id=f"node{rank}", host="127.0.0.1", port=int(port)) for rank, port in enumerate(ports)]
        self.placements = [
            Placement(rank=rank, local_rank=0, node_id=f"node{rank}", node_rank=rank, holders=(self.endpoints[1 - rank],))
            for rank in range(WORLD)
        ]
        self.keeping = Keeping(job_id="matrix")
        self.states: dict[int, Table] = {}
        self.values: dict[int, Table] = {}
        self.born: dict[int, int] = {}  # step -> the generation in which S_step was stepped to
        self.kinds: tuple[SourceKind, ...] = ()
        self.resume_step = 0
        self.way = "the first time"
        self.training: Training
        self.state: TrainingState
        self.guard: RankGuard
        self.session: CellSession

    def run(self) -> None:
        """Raises ContradictionError, or whatever the training or a recovery raises."""
        try:
            self.start(muted=False)
            for step in range(STEPS):
                self.step()
                if step in (3, 4):
                    self.back("its own snapshot", step, (SourceKind.VAULT, SourceKind.VAULT))
                    fresh = step % 2
                    kinds = tuple(SourceKind.REPLICA if rank == fresh else SourceKind.VAULT for rank in range(WORLD))
                    self.back(f"replica and peers for rank {fresh}", step, kinds)
                if step == 4:
                    self.back_to_checkpoint(step)
                if step in (1, 3):
                    self.back("the live state", step + 1, (SourceKind.LIVE, SourceKind.LIVE))
        finally:
            self.end()

    def start(self, *, muted: bool) -> None:
        """A process of this rank begins: it runs the script up to the loop."""
        node = self.node
        role = Role(
            generation=node.generation, rank=node.rank, local_rank=0, world_size=WORLD, muted=muted, store_host="127.0.0.1",
            store_port=node.store_port, hint_step=self.resume_step, placement=self.placements[node.rank],
        )  # fmt: skip
        self.session = CellSession(node, self.vault, self.keeping, role, self.plan)
        node.session = self.session
        self.training = build(self.parallel, self.pieces, node.meshes)
        training = self.training
        self.state = TrainingState(models=training.models, optimizers=training.optimizers, extra=training.extra)
        self.guard = RankGuard(self.session, self.state, list(training.optimizers.values()), CpuEngine())
        self.guard.begin(start=0, until=STEPS)
        while self.session.member.phase.value == "rehearse" or self.guard._rehearsing:
            self.attempt()

    def step(self) -> None:
        """The next step, which is to complete; looks at the state before and after, and at what the step returns."""
        step = self.guard.next_step
        self.look(step)
        attempt_value = self.attempt()
        assert self.guard.next_step == step + 1, f"step {step} was discarded, {self.way}: {self.session.line.problem}"
        self.born[step + 1] = self.session.member.running
        self.look(step + 1)
        self.same(self.values, step, Table(value={"returned": repr(attempt_value)}), f"what step {step} returns")
        self.guard._body_ended()  # here the loop has no body
        self.guard._protection.wait_done(step + 1)
        committed = self.session.member.commit_step
        assert committed >= step + 1, f"S_{step + 1} was not committed: {self.session.line.problem}"

    def attempt(self) -> float | None:
        with self.guard.step() as attempt:
            return self.training.script.step(attempt.step)
        return None

    def look(self, step: int) -> None:
        self.same(self.states, step, table_of(self.state), f"S_{step}")

    def same(self, known: dict[int, Table], step: int, table: Table, what: str) -> None:
        found = [str(each) for each in differences(known.setdefault(step, table), table)]
        if found:
            more = f" and {len(found) - 6} more" if found[6:] else ""
            raise ContradictionError(f"{what}, {self.way}: {'; '.join(found[:6])}{more}")

    def back(self, way: str, step: int, kinds: tuple[SourceKind, ...]) -> None:
        """A failure: the step under way is discarded, all go back to S_step; a rank with a replica gets a new process."""
        node = self.node
        self.way, self.kinds, self.resume_step = f"back at S_{step} by {way}", kinds, step
        fresh = kinds[node.rank] is SourceKind.REPLICA
        node.meet("back")
        node.generation += 1
        node.new_store()
        if fresh:
            self.session.order(Quiesce(generation=node.generation, reason=way))
            self.leave()
            self.start(muted=True)
        else:
            self.session.order(Quiesce(generation=node.generation, reason=way))
            self.attempt()
        assert self.guard.next_step == step, f"{self.way}: the process is at step {self.guard.next_step}"
        if step + 1 in self.states:
            self.step()
        else:
            self.look(step)

    def plan(self) -> Reform:
        node, step = self.node, self.resume_step
        sources = []
        for rank, kind in enumerate(self.kinds):
            others = [other for other in range(WORLD) if other != rank]
            peers = tuple(Peer(rank=other, slot_generation=self.born[step], endpoint=self.endpoints[other]) for other in others)
            away = kind is SourceKind.REPLICA
            sources.append(
                Source(
                    rank=rank, kind=kind, slot_generation=self.born[step], endpoint=self.endpoints[1 - rank] if away else None,
                    peers=peers if away else (),
                )
            )  # fmt: skip
        return Reform(
            generation=node.generation, resume_step=step, commit_step=step, store_host="127.0.0.1", store_port=node.store_port,
            placements=(self.placements[node.rank],), sources=tuple(sources),
        )  # fmt: skip

    def back_to_checkpoint(self, step: int) -> None:
        """All processes are lost; new ones resume from a persistent checkpoint of S_step, which is made of the vaults' slots."""
        node = self.node
        self.way = f"back at S_{step} by a persistent checkpoint"
        run = CheckpointRun(folder=self.folder / "checkpoints", name="matrix", job_id="matrix", world_size=WORLD, keep=1)
        for name in SLOT_NAMES:
            slot = SlotFile(slot_path(self.vault, SlotKind.SNAPSHOT, node.rank, name))
            header = slot.header()
            if header is not None and header.step == step:
                written = write_part(run, slot)
        node.meet("parts")
        if node.rank == 0:
            assert complete(run, written) is not None
        node.meet("complete")
        node.generation += 1
        node.new_store()
        self.session.order(Quiesce(generation=node.generation, reason="all are lost"))
        self.leave()
        client = TCPStore("127.0.0.1", node.store_port, is_master=False, timeout=_PATIENCE)
        node.groups.reform(generation=node.generation, store=client, timeout_s=PATIENCE_S, cancelled=threading.Event())
        self.keeping = Keeping(job_id="matrix", checkpoint_dir=str(run.folder), resume="auto")
        for path in self.vault.iterdir():
            path.unlink()
        self.start(muted=False)
        assert self.guard.next_step == step, f"{self.way}: the process is at step {self.guard.next_step}"
        self.born[step] = node.generation
        self.step()

    def leave(self) -> None:
        """The process ends; what it held is gone."""
        self.session.leave()
        del self.guard, self.state, self.training
        gc.collect()

    def end(self) -> None:
        self.node.session = None
        with contextlib.suppress(AttributeError):
            self.session.leave()
        self.server.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def serve(rank: int, port: int, folder: str, line: Connection) -> None:
    """Runs the cells that come, until the line is closed; after one that fails the process ends: it cannot be trusted."""
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # its stack, for who looks at a cell that is stuck
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    node = Node(rank, port, Path(folder))
    with contextlib.suppress(EOFError):
        while True:
            outcome = _run(node, line.recv())
            line.send(outcome)
            if outcome["problem"]:
                break
    os._exit(0)  # threads of what failed may be anywhere


def _run(node: Node, order: dict[str, Any]) -> dict[str, str]:
    node.cell += 1
    cell = Cell(node, order["parallel"], order["pieces"], node.folder / f"{node.cell}")
    try:
        cell.run()
    except ContradictionError as error:
        return {"kind": "differs", "problem": f"rank {node.rank}: {error}"}
    except ConfigError as error:
        return {"kind": "refused", "problem": str(error)}
    except Exception:
        return {"kind": "error", "problem": f"rank {node.rank}, {cell.way}: {traceback.format_exc()}"}
    return {"kind": "same", "problem": ""}
