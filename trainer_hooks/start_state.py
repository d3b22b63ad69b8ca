"""The state with which ranks that start together begin: the script's own, or that of a persistent checkpoint.

The checkpoint is chosen and read when the first loop is entered, and restored in the loop that has its step: what the script does
before that may change models and optimizers in form as well, as it did when the checkpoint was made.
"""

import logging
from pathlib import Path

from deadpool.host.errors import ConfigError, SnapshotError, UnavailableError
from deadpool.proto.vault.layout import Tables
from deadpool.trainer_hooks.checkpoints.format import restore_tables
from deadpool.trainer_hooks.checkpoints.resume import agree
from deadpool.trainer_hooks.ddp_reducers import DdpReducers
from deadpool.trainer_hooks.protection.controller import Protection
from deadpool.trainer_hooks.protection.restore import restore_from
from deadpool.trainer_hooks.protocol import RankPhase
from deadpool.trainer_hooks.session import Session
from deadpool.trainer_hooks.state.training_state import TrainingState

log = logging.getLogger(__name__)


class StartState:
    """For the main thread, of a process that is no joiner. `settled`: all DDPs are as the state has recorded them."""

    def __init__(self, session: Session, state: TrainingState, protection: Protection, reducers: DdpReducers) -> None:
        self._session, self._state, self._protection, self._reducers = session, state, protection, reducers
        self._path: Path | None = None
        self._read_tables: tuple[Tables, dict[str, bytearray]] | None = None
        self.settled = True

    def choose(self, start: int) -> int:
        """Returns the step of the checkpoint that all start from, which was read; `start` where there is none.

        ConfigError, with which the job ends: none of them can be read.
        """
        session, role = self._session, self._session.role
        with session.changed:
            session.member.dirty = True  # until it is known what the process should hold, it holds nothing
        try:
            store = session.connect_store(role.store_host, role.store_port)
            keeping, rank, world_size = session.keeping, session.rank, session.world_size
            found = agree(store, keeping, rank, world_size, role.generation, session.cancelled, self._read)
        except UnavailableError as error:
            session.trouble(role.generation, error)
            return start
        except ConfigError as error:
            session.refuse(str(error))
            raise
        if found is None:
            return start
        self._path = found.path
        log.warning("rank %d resumes at step %d from %s", rank, found.step, found.path)
        return found.step

    def take_up(self) -> None:
        """Makes the process hold the chosen checkpoint, if there is one."""
        session = self._session
        if self._path is not None:
            assert self._read_tables is not None
            restore_from(self._state, *self._read_tables)
            self._read_tables = None
            self.settled = self._settle()
        with session.changed:
            session.member.dirty = session.member.phase is RankPhase.BROKEN

    def take_up_again(self) -> None:
        """The same after a rehearsal, which has changed the state: from the own snapshot of it, or the checkpoint."""
        if not (self.settled and self._protection.restore_own()):
            assert self._path is not None
            restore_from(self._state, *restore_tables(self._path, self._session.rank))
        self._reducers.settle()
        with self._session.changed:
            self._session.member.dirty = False

    def _settle(self) -> bool:
        """Returns whether all DDPs are as the checkpoint has recorded them: the first snapshot then says so as well.

        One that can only be brought there by the steps of a rehearsal is not.
        """
        groups = self._session.open()
        groups.rehearse(True)
        try:
            self._reducers.settle()
        except SnapshotError as error:
            log.info("%s: once it has rehearsed", error)
            return False
        finally:
            groups.rehearse(False)
        return True

    def _read(self, path: Path) -> None:
        """Reads what the checkpoint holds of this rank. SnapshotError when it is bad."""
        self._read_tables = restore_tables(path, self._session.rank)
