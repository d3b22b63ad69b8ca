"""This process as a member of the job: its line to the agent, its role, its part in the protocol, its groups.

Orders come on the link's thread and are answered immediately; what the training loop itself must do (quiesce, carry out a plan)
it finds by asking here. One lock guards the member's state; breaking the groups happens outside it.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, assert_never

from deadpool.host.console import tell
from deadpool.host.errors import ConfigError, UnavailableError
from deadpool.proto.call_record import CallRecord, Head, record_counts, record_path
from deadpool.proto.config import Keeping
from deadpool.proto.messages import (
    BeginLoop,
    DrillOver,
    InjectFailure,
    LaunchFailed,
    Quiesce,
    RankBroken,
    RankFailed,
    RankFinished,
    RankJoined,
    RankMessage,
    RankOrder,
    RankPrepared,
    RankRaised,
    RankReopened,
    Reform,
    Register,
    Release,
    Reserve,
    Reserved,
    Role,
    WriteCheckpoint,
)
from deadpool.proto.secret import read_private
from deadpool.proto.version import own_version
from deadpool.trainer_hooks.device import own_gpu
from deadpool.trainer_hooks.fault_injection import PendingInjections
from deadpool.trainer_hooks.first_values import FirstValues
from deadpool.trainer_hooks.groups.daemon_threads import daemons
from deadpool.trainer_hooks.groups.registry import Groups
from deadpool.trainer_hooks.link import Link
from deadpool.trainer_hooks.predecessor import Predecessor
from deadpool.trainer_hooks.process_end import wait_for_threads
from deadpool.trainer_hooks.protection.ports import ProtectionControl
from deadpool.trainer_hooks.protection.ready_slots import ReadySlots
from deadpool.trainer_hooks.protocol import Action, Break, Leave, Member, RankPhase, Recover
from deadpool.trainer_hooks.stacks import offer_stacks
from deadpool.trainer_hooks.state.items import Held
from deadpool.trainer_hooks.torch_internals import TCPStore

log = logging.getLogger(__name__)
STORE_TIMEOUT = timedelta(seconds=10)
_LAST_COMMIT_S = 5.0  # a rank that has left its loop exits: the others' last step may need what it holds


class AnotherRole(BaseException):
    """The process waited hot, and is needed as another rank: it leaves what it has built (run.main). Not for scripts to catch."""


class Session:
    """Made by join(). The constructor returns once the process has a role: immediately for a rank, much later for a stand-in.

    UnavailableError: the agent refuses this process, or cannot be spoken with.
    """

    def __init__(
        self, socket_path: Path, job_dir: Path, vault_dir: Path, node_id: str, keeping: Keeping, *, repeatable: bool = False
    ) -> None:
        self._start_without_role(vault_dir, node_id, keeping, read_private(job_dir / "token"), repeatable=repeatable)
        self._link = Link(socket_path, self.token, self._on_order, self._on_link_lost)
        self._link.send(Register(pid=os.getpid(), version=own_version()))
        with self.changed:
            self.changed.wait_for(lambda: self._role is not None or self._link_lost)
        if self._role is None:
            raise UnavailableError(f"this node's agent gives this process no rank: {self._link_lost}")
        offer_stacks(vault_dir)
        self._take_role(self._role)

    def _start_without_role(self, vault_dir: Path, node_id: str, keeping: Keeping, token: str, *, repeatable: bool) -> None:
        self._repeatable = repeatable
        self.token = token
        self.vault_dir, self.node_id, self.keeping = vault_dir, node_id, keeping
        self.changed = threading.Condition(threading.RLock())  # guards all that follows
        self.member: Member
        self.groups: Groups | None = None
        self.cancelled = threading.Event()  # the generation that runs (or is being restored) is over
        self.injections = PendingInjections(self._lose_network)
        self.drilled: set[int] = set()  # the boundaries whose drill is over
        self.inherited: dict[str, Any] = {}  # of a joiner: what it knows of its predecessor (predecessor.py)
        self.ready_slots: ReadySlots | None = None  # of a joiner
        self.first_values = FirstValues()  # of the script's parameters, until its first loop begins
        self.excluded: frozenset[int] = frozenset()  # ranks without which the generation runs
        self.behind = ""  # what is wrong if the script ends now, not having come to where it was to go on from
        self._protection: ProtectionControl | None = None
        self.closed = False
        self._role: Role | None = None
        self._plan: Reform | None = None
        self._reserved: Reserved | None = None
        self._link_lost = ""  # why, while there is no role
        self._pid = os.getpid()

    def _take_role(self, role: Role) -> None:
        self.role: Role = role
        self.rank: int = role.rank
        self.world_size: int = role.world_size
        own = record_path(self.vault_dir, self.rank, os.getpid() if role.hot else 0)
        self.record: CallRecord = CallRecord(own, create=True)
        self.record.write_head(Head(pid=os.getpid(), generation=role.generation))

    def begin_again(self) -> None:
        """The script has left all that it had built as the rank before: as the process was when it got its first role."""
        record_path(self.vault_dir, self.rank, os.getpid()).unlink(missing_ok=True)
        if self.groups is not None:
            self.groups.close()
        if self.ready_slots is not None:
            self.ready_slots.take()  # nothing asks the agent for the rank before any more
        with self.changed:
            assert self._role is not None
            self.groups, self._protection, self._plan = None, None, None
            self.cancelled = threading.Event()
            self.inherited, self.ready_slots, self.behind = {}, None, ""
            self.first_values.end()
            role = self._role
        self._take_role(role)

    def open_groups(self, host: str, timeout: timedelta | None, *, gloo_alone: bool = False) -> None:
        """Initialises torch.distributed for this role: with live groups, or muted for a joiner. `gloo_alone`: as in Groups."""
        groups = Groups(
            record=self.record,
            host=host,
            on_broken=self._on_broken,
            on_muted=self.muted_call,
            before_abort=self._abort_begins,
            gloo_alone=gloo_alone,
            device=None if gloo_alone else own_gpu(),
        )
        with self.changed:
            self.groups = groups
            over = self.member.phase is RankPhase.BROKEN  # before it began
        store = None if self.role.muted or over else self.connect_store(self.role.store_host, self.role.store_port)
        groups.init_default(
            rank=self.rank, world_size=self.world_size, generation=self.role.generation, store=store, timeout=timeout
        )
        self._link.send(RankJoined(generation=self.role.generation, rank=self.rank, pid=os.getpid()))

    def inherit(self, predecessor: Predecessor) -> None:
        """Keeps what is known of the rank's process before, and has slots made for a state of that size meanwhile."""
        self.inherited = predecessor.extras
        if predecessor.tables is not None:
            self.ready_slots = ReadySlots(self.vault_dir, self.rank, predecessor.tables, self.reserve)

    def attach(self, protection: ProtectionControl) -> None:
        """From now on this is asked for checkpoints, and hears when the generation or the process ends."""
        with self.changed:
            self._protection = protection

    def open(self) -> Groups:
        """Returns the groups, once they were opened."""
        assert self.groups is not None
        return self.groups

    @property
    def playing(self) -> tuple[int, ...]:
        """The ranks of the generation, all but those that are excluded."""
        return tuple(rank for rank in range(self.world_size) if rank not in self.excluded)

    def connect_store(self, host: str, port: int) -> TCPStore:
        """Returns a client of its own of the generation's rendezvous store; UnavailableError when it cannot be reached."""
        try:
            return TCPStore(host, port, is_master=False, timeout=STORE_TIMEOUT)
        except RuntimeError as error:
            raise UnavailableError(f"rendezvous store {host}:{port}: {str(error).splitlines()[0]}") from error

    def reserve(self, snapshot_bytes: int, replica_bytes: int) -> None:
        """Has the agent make the rank's slots. ConfigError when the vault is too small; UnavailableError: the process ends."""
        with self.changed:
            self._reserved = None
            self._link.send(Reserve(rank=self.rank, snapshot_bytes=snapshot_bytes, replica_bytes=replica_bytes))
            self.changed.wait_for(lambda: self._reserved is not None or self.closed)
            reserved = self._reserved
        if reserved is None:
            raise UnavailableError("this process ends")
        if reserved.error:
            raise ConfigError(reserved.error)

    def refuse(self, reason: str) -> NoReturn:
        """Tells the supervisor that the job cannot run as asked, and raises that as ConfigError."""
        self._link.send(LaunchFailed(generation=self.role.generation, reason=reason))
        raise ConfigError(reason)

    def first_values_end(self, held: Callable[[], list[Held]]) -> None:
        """The script has built all that it trains. ConfigError: it uses first values for something else (join's skip_init)."""
        if self.first_values.on:
            wrong = self.first_values.kept_elsewhere(each.tensor for each in held())
            self.first_values.end()
            if wrong:
                self.refuse(wrong)

    def send(self, message: RankMessage) -> None:
        self._link.send(message)

    def await_plan(self) -> Reform:
        """Returns the plan of the recovery under way, whenever it comes. `cancelled` is about that plan from here on."""
        with self.changed:
            self.changed.wait_for(lambda: self._plan is not None or self._role is not self.role)
            if self._role is not self.role:
                raise AnotherRole
            assert self._plan is not None
            plan, self._plan = self._plan, None
        self.excluded = frozenset(plan.excluded)
        record_counts(self.vault_dir, self.rank, os.getpid())
        os.environ.update(MASTER_ADDR=plan.store_host, MASTER_PORT=str(plan.store_port))  # the same on every rank
        return plan

    def carry_out(self, actions: Sequence[Action]) -> None:
        """Sends reports and breaks groups, as the member has decided. Called with the lock held."""
        leaving = False
        for action in actions:
            match action:
                case Break():
                    self._cancel()
                case Leave():
                    leaving = True
                case Recover():
                    self._plan = action.order
                    self.cancelled = threading.Event()
                case RankBroken():
                    self._cancel()
                    self._link.send(action)
                case RankPrepared() | RankFailed() | RankFinished() | RankRaised() | RankReopened():
                    self._link.send(action)
                case _:
                    assert_never(action)
        self.changed.notify_all()
        if leaving:
            os.kill(os.getpid(), signal.SIGKILL)

    def trouble(self, generation: int, error: Exception) -> None:
        """Something that the generation needs has failed in this process: as if a collective had."""
        self._on_broken(generation, str(error))
        if self.groups is not None:
            self.groups.break_generation(generation, str(error))

    def muted_call(self) -> None:
        """A call of a broken generation is about to return without having communicated: in the loop body it never does.

        There the script would take what it returns for real. The process waits to be replaced.
        """
        if not self.member.is_in_body:
            return
        with self.changed:
            actions = self.member.outside()
            if actions is None:
                return
            log.warning("outside of a step, and ranks are gone: a fresh process takes this one's place")
            self.carry_out(actions)
            self.changed.wait_for(lambda: False)

    def _abort_begins(self) -> None:
        if self._protection is not None:
            self._protection.abort_begins()

    def _cancel(self) -> None:
        self.cancelled.set()
        if self._protection is not None:
            self._protection.generation_over()

    def close(self) -> None:
        """At exit: ends what runs beside the main thread, none of which may be inside torch afterwards."""
        if os.getpid() != self._pid:
            return  # a fork of the script's: connections and threads are not its own
        self.closed = True
        if not hasattr(sys, "last_type"):  # no error has ended the script
            self.record.end_script()
            self._say_behind()
        with self.changed:
            self.carry_out(self.member.exits(type(getattr(sys, "last_value", SystemExit())).__name__))
        if self._protection is not None:
            self._protection.close(commit_timeout_s=_LAST_COMMIT_S if self.member.has_left else 0.0)
        if self.groups is not None:
            self.groups.close()
        self._link.close()
        protecting = [thread for thread in threading.enumerate() if thread.name == "deadpool-protect"]
        wait_for_threads(daemons, [*protecting, *self._link.threads])

    def _say_behind(self) -> None:
        """Where all ranks have started together the user is to mend it; a joiner fails, and the job judges by that."""
        if self.behind and self.role.muted:
            tell(f"deadpool: rank {self.rank}: {self.behind}; how many loops there are must not depend on results")
        elif self.behind:
            self._link.send(LaunchFailed(generation=self.role.generation, reason=self.behind))

    def _on_order(self, order: RankOrder) -> None:
        breaks: list[Break] = []
        with self.changed:
            actions: Sequence[Action] = ()
            match order:
                case Role():
                    self.member = Member(
                        rank=order.rank, generation=order.generation, joiner=order.muted, repeatable=self._repeatable
                    )
                    self._role = order
                case Reserved():
                    self._reserved = order
                case Quiesce():
                    actions = self.member.quiesce(order)
                case Reform():
                    actions = self.member.reform(order)
                case Release():
                    actions = self.member.release(order)
                case BeginLoop():
                    actions = self.member.begin_loop(order)
                case InjectFailure():
                    self.injections.add(order.kind)
                case DrillOver():
                    self.drilled.add(order.step)
                case WriteCheckpoint():
                    if self._protection is not None:
                        self._protection.checkpoint_asked()
                case _:
                    assert_never(order)
            breaks = [action for action in actions if isinstance(action, Break)]
            self.carry_out(actions)
        for action in breaks:
            if self.groups is not None:
                self.groups.break_generation(action.generation, action.reason)

    def _on_link_lost(self, reason: str) -> None:
        """The agent lives, and neither side hears the other any more: this process ends, and counts as a failed rank."""
        with self.changed:
            if self._role is None:
                self._link_lost = reason
                self.changed.notify_all()
                return
        tell(f"deadpool: rank {self._role.rank} has lost the connection to its agent ({reason}): this process ends")
        os._exit(1)

    def _lose_network(self) -> None:
        if self.groups is not None:
            self.groups.lose_connections()

    def _on_broken(self, generation: int, error: str) -> None:
        needs = self.groups.needs if self.groups is not None else ()
        with self.changed:
            self.carry_out(self.member.collective_failed(generation, error, needs))
