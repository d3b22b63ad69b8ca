"""What protection needs of others: the session of the process, to which it reports, and one generation's network."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from deadpool.proto.config import Keeping
from deadpool.proto.messages import RankMessage, Role
from deadpool.proto.vault.together import Together
from deadpool.proto.vault.transport import ReplicaSender
from deadpool.trainer_hooks.protection.commit import Known
from deadpool.trainer_hooks.protection.peers import Peers, Sharing
from deadpool.trainer_hooks.protection.ready_slots import ReadySlots
from deadpool.trainer_hooks.protection.verify import Verdict
from deadpool.trainer_hooks.protocol import Member
from deadpool.trainer_hooks.torch_internals import Store


class StoreBoard(Protocol):
    """Where the ranks say that they have a state safe, and learn that all have (commit.py). UnavailableError: store gone."""

    def announce(
        self, step: int, together: Together, *, again: bool = False, checkpoint: bool = False, interval: int = 1
    ) -> Known | None:
        """Returns what has become of S_step where that is known with this announcement, else None."""

    def refuse(self, step: int, *, again: bool = False) -> None: ...

    def look(self, step: int, *, again: bool = False) -> Known | None: ...


class PeerExchange(Protocol):
    """Who else holds these bytes (peers.py)."""

    def peers(self, step: int, sums: Mapping[str, int], *, again: bool = False) -> Sharing | None: ...


class StateVerifier(Protocol):
    """Whether what several ranks should hold is the same on all of them (verify.py)."""

    def verdict(self, step: int, sums: Mapping[str, int], peers: Peers, *, again: bool = False) -> Verdict | None: ...


class CheckpointChoice(Protocol):
    """Which states become persistent checkpoints (checkpoints/agreement.py)."""

    def ask(self) -> None: ...

    def before_commit(self) -> bool: ...

    def has_come(self, step: int, *, asked: bool) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What connects a rank with the others of its generation. `cancelled`: set when the generation is over."""

    board: StoreBoard
    holders: Sequence[ReplicaSender]
    exchange: PeerExchange
    verifier: StateVerifier | None = None
    checkpoints: CheckpointChoice | None = None
    cancelled: threading.Event


class ProtectionEvents(Protocol):
    """What comes of the states of one generation, said by its protect thread."""

    def committed(self, step: int) -> None: ...

    def refused(self, step: int, reason: str) -> None:
        """S_step will not be committed: because of this rank for that reason, or "" because of some rank."""

    def differs(self, step: int, verdict: Verdict, good_step: int) -> None:
        """Holders of the same item hold other bytes; `good_step`: where all go back to, NO_STEP when they do not."""

    def failed(self, error: Exception) -> None:
        """The generation cannot go on: something that protection needs of it is gone."""


class ProtectionControl(Protocol):
    """What the session asks of the protection, on any thread. All but two are called with the session's lock held."""

    def checkpoint_asked(self) -> None: ...

    def generation_over(self) -> None:
        """Called right after `cancelled` is set."""

    def abort_begins(self) -> None:
        """Called before the groups of a generation are aborted, without the lock."""

    def close(self, *, commit_timeout_s: float = 0.0) -> None:
        """At exit: ends the protect thread, which must not be inside torch when the interpreter goes down.

        `commit_timeout_s`: that the commit of the newest state is waited for before.
        """


class ProtectedProcess(Protocol):
    """The process as a member of the job (session.py). `changed` guards `member`."""

    token: str
    vault_dir: Path
    node_id: str
    keeping: Keeping
    changed: threading.Condition
    member: Member
    role: Role
    rank: int
    excluded: frozenset[int]
    cancelled: threading.Event
    drilled: set[int]  # the boundaries whose drill is over
    ready_slots: ReadySlots | None

    @property
    def playing(self) -> tuple[int, ...]: ...

    def attach(self, protection: ProtectionControl) -> None: ...

    def connect_store(self, host: str, port: int) -> Store: ...

    def reserve(self, snapshot_bytes: int, replica_bytes: int) -> None: ...

    def refuse(self, reason: str) -> NoReturn: ...

    def send(self, message: RankMessage) -> None: ...

    def trouble(self, generation: int, error: Exception) -> None: ...
