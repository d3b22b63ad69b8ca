"""From which persistent checkpoint do the ranks start? Rank 0 looks, all do as it says: the folder may change meanwhile.

A checkpoint that some rank cannot read back, byte for byte, is named and passed over by all; the next older one is tried.
"""

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from deadpool.host.errors import ConfigError, SnapshotError, UnavailableError
from deadpool.proto.checkpoint import Complete, complete_checkpoints, read_marker
from deadpool.proto.config import Keeping
from deadpool.trainer_hooks.store_wait import wait_for
from deadpool.trainer_hooks.torch_internals import Store

log = logging.getLogger(__name__)


def agree(
    store: Store,
    keeping: Keeping,
    rank: int,
    world_size: int,
    generation: int,
    cancelled: threading.Event,
    load: Callable[[Path], None],
) -> Complete | None:
    """Returns the checkpoint to start from, which all ranks have loaded; None to start from nothing.

    `load`: reads this rank's part, SnapshotError when it is bad. ConfigError: the checkpoint is of another number of ranks, gone,
    or bad with no older one behind it. UnavailableError: the generation has ended.
    """
    if not keeping.checkpoint_dir and keeping.resume in ("auto", "never"):
        return None
    meeting = _Meeting(store, rank, world_size, cancelled)
    known = candidates(keeping, generation) if rank == 0 else []
    tried: list[str] = []
    try:
        while (path := meeting.next(known[len(tried)].path if len(tried) < len(known) else None)) is not None:
            found = _read(path, world_size)
            if meeting.all_can(lambda path=path: load(path)):  # type: ignore[misc]
                return found
            tried.append(str(path))
    except RuntimeError as error:
        raise UnavailableError(f"rendezvous store: {error}") from error
    if tried:
        raise ConfigError(f"no checkpoint can be read: {', '.join(tried)}; see the ranks' logs, or start with --resume never")
    return None


def candidates(keeping: Keeping, generation: int) -> list[Complete]:
    """Returns the checkpoints that count, the best first. Before a first failure `--resume` decides; later this job's own come
    first.
    """
    known = complete_checkpoints(Path(keeping.checkpoint_dir)) if keeping.checkpoint_dir else []
    if keeping.resume == "auto":
        return known
    own = [one for one in known if one.job_id == keeping.job_id] if generation > 1 else []
    named = read_marker(Path(keeping.resume)) if keeping.resume != "never" else None
    return own + ([named] if named is not None else [])


def _read(path: Path, world_size: int) -> Complete:
    found = read_marker(path)
    if found is None:
        raise ConfigError(f"checkpoint {path} cannot be read on this node: every node must see --checkpoint-dir")
    if found.world_size != world_size:
        raise ConfigError(
            f"checkpoint {path} is of {found.world_size} ranks, the job has {world_size}: use --resume never, or as many ranks"
        )
    return found


class _Meeting:
    """The ranks of one generation, trying one checkpoint after the other. RuntimeError when the store is gone."""

    def __init__(self, store: Store, rank: int, world_size: int, cancelled: threading.Event) -> None:
        self._store, self._rank, self._world_size, self._cancelled = store, rank, world_size, cancelled
        self._number = 0

    def next(self, choice: Path | None) -> Path | None:
        """Returns rank 0's choice on every rank."""
        self._number += 1
        if self._rank == 0:
            self._store.set(self._key("path"), json.dumps("" if choice is None else str(choice)))
        self._wait("path")
        text = json.loads(bytes(self._store.get(self._key("path"))))
        return Path(text) if text else None

    def all_can(self, load: Callable[[], None]) -> bool:
        """Returns whether every rank could load its part."""
        try:
            load()
        except SnapshotError as error:
            log.warning("rank %d: %s: passed over", self._rank, error)
            self._store.set(self._key("bad"), "1")
        if self._store.add(self._key("told"), 1) == self._world_size:
            self._store.set(self._key("all"), "1")
        self._wait("all")
        return not self._store.check([self._key("bad")])

    def _wait(self, what: str) -> None:
        if not wait_for(self._store, [self._key(what)], self._cancelled):
            raise UnavailableError("the generation ended before a checkpoint was chosen")

    def _key(self, what: str) -> str:
        return f"resume/{self._number}/{what}"
