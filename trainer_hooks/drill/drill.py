"""A rank's part in the drill: it writes down what it holds around the step that is done again, and waits at the boundary.

Which way all go back, and when they go on, the supervisor decides (supervisor/recovery/drill.py). The files outlive the process:
it may be the one that is replaced.
"""

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deadpool.proto.config import Keeping
from deadpool.proto.drill import FOLDER
from deadpool.proto.messages import DrillReady
from deadpool.trainer_hooks.drill.digests import table_of
from deadpool.trainer_hooks.drill.held_open import held_open, held_open_path
from deadpool.trainer_hooks.drill.loose import loose_of
from deadpool.trainer_hooks.drill.process_wide import process_wide
from deadpool.trainer_hooks.drill.reached import script_frames
from deadpool.trainer_hooks.drill.tables import table_path
from deadpool.trainer_hooks.protocol import RankPhase
from deadpool.trainer_hooks.session import Session
from deadpool.trainer_hooks.state.training_state import TrainingState


class DrilledRank:
    """For the main thread. `step_function`, `loader`: the script's, once known. `returned`: what its last call has returned."""

    def __init__(self, session: Session, state: TrainingState) -> None:
        keeping: Keeping = session.keeping
        self.boundaries = frozenset(keeping.drill_at)
        self.step_function: Callable[..., Any] | None = None
        self.loader: Any = None
        self.returned: Any = None
        self._folder = Path(keeping.log_dir) / FOLDER
        self._session, self._state = session, state

    def begins(self, step: int) -> None:
        """The process, which is live, is about to step from S_step."""
        if step + 1 in self.boundaries and self._session.member.phase is RankPhase.RUN:
            self._write(step + 1, "before", None)

    def completed(self, step: int) -> None:
        """S_step is there, and has been handed to protection."""
        if step in self.boundaries:
            self._write(step, "after", self.returned)
            self._write_held_open(joins=False)

    def joins(self) -> None:
        """The process takes over a rank, and is about to wait for the others, where a hot stand-in waits for long."""
        if self.boundaries and self._session.member.phase is RankPhase.REHEARSE:
            self._write_held_open(joins=True)

    def hold(self, step: int, wait_done: Callable[[int], None]) -> None:
        """Waits at S_step while it is drilled. Then the generation is broken (a way back has begun), or the rank goes on."""
        session = self._session
        if step not in self.boundaries:
            return
        wait_done(step)
        with session.changed:
            member = session.member
            if member.phase is RankPhase.RUN and step not in session.drilled:
                session.send(DrillReady(generation=member.running, rank=session.rank, step=step))
                session.changed.wait_for(lambda: member.phase is not RankPhase.RUN or step in session.drilled)

    def _write_held_open(self, *, joins: bool) -> None:
        session, log_dir = self._session, self._folder.parent
        ours = (session.vault_dir, log_dir)
        generation = session.member.generation if joins else session.member.running
        path = held_open_path(log_dir, generation=generation, rank=session.rank, joins=joins)
        _put(path, held_open(os.getsid(0), ours).to_json())

    def _write(self, step: int, when: str, value: Any) -> None:
        session = self._session
        state = self._state
        loose = loose_of(
            state.models, state.optimizers, self.step_function, frames=script_frames(sys._getframe()), loader=self.loader,
            extra=state.extra,
        )  # fmt: skip
        loose |= process_wide()
        table = table_of(self._state, value=value, loose=loose)
        path = table_path(self._folder, step=step, generation=session.member.running, rank=session.rank, when=when)
        _put(path, table.to_json())


def _put(path: Path, text: str) -> None:
    """Writes a whole file or none."""
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(parents=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(text)
    partial.rename(path)
