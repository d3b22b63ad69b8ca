"""The node's vault: a folder in /dev/shm that outlives the ranks' processes and dies with the agent.

It appears, locked, in one move (rename), and its lock is held as long as the agent lives (host/vault_folders.py).
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from deadpool.host.disk import free_bytes
from deadpool.host.errors import ConfigError, SnapshotError
from deadpool.host.vault_folders import LOCK, empty_and_remove, remove_leftovers, vault_folder
from deadpool.proto.call_record import RECORD_BYTES
from deadpool.proto.messages import RankSet, Slot, SlotKind
from deadpool.proto.vault.layout import HEADER_BYTES, SNAPSHOT_NAMES, Header, Tables, reserve, slot_path
from deadpool.proto.vault.together import HeldTogether


class Vault:
    """Made by `create`. The folder's files are written by ranks (snapshots, records) and by the replica receiver."""

    def __init__(self, folder: Path, lock_fd: int) -> None:
        self.folder = folder
        self._lock_fd = lock_fd
        self._known: dict[Path, tuple[Header, tuple[RankSet, ...], bool]] = {}  # of each slot: what its tables say
        self._together: dict[int, HeldTogether] = {}  # by rank: a replica's items are mostly laid out as they were before

    @classmethod
    def create(cls, root: Path, job_id: str, node_id: str) -> "Vault":
        """Returns the node's new, empty vault; ConfigError when a live agent has one of that name."""
        remove_leftovers(root)
        folder = vault_folder(root, job_id, node_id)
        unborn = root / f".{folder.name}.{os.getpid()}"
        unborn.mkdir(mode=0o700)
        lock_fd = os.open(unborn / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            unborn.rename(folder)
        except OSError as error:
            shutil.rmtree(unborn)
            os.close(lock_fd)
            raise ConfigError(f"vault {folder}: in use by another agent of job {job_id}; choose another --job-id") from error
        return cls(folder, lock_fd)

    def remove(self) -> None:
        empty_and_remove(self.folder)
        os.close(self._lock_fd)

    def reserve_snapshots(self, rank: int, snapshot_bytes: int, replica_bytes: int, *, slots: int = 2) -> None:
        """Makes the rank's snapshot slots; ConfigError with the sum needed and what is free.

        `replica_bytes`: all the replica slots that this node will keep for such a rank's neighbours, made when they ask.
        """
        paths = [slot_path(self.folder, SlotKind.SNAPSHOT, rank, name) for name in SNAPSHOT_NAMES[:slots]]
        missing = [path for path in paths if not path.exists() or path.stat().st_size < snapshot_bytes]
        free = free_bytes(self.folder) + sum(path.stat().st_size for path in missing if path.exists())
        needed = snapshot_bytes * len(missing) + (replica_bytes + RECORD_BYTES if missing else 0)
        if needed > free:
            raise ConfigError(
                f"vault {self.folder}: rank {rank} needs {needed} bytes ({len(paths)} snapshots of {snapshot_bytes}, "
                f"{replica_bytes} of neighbours' replicas), {free} are free; "
                f"make {self.folder.parent} larger or the rank's shard smaller"
            )
        for path in missing:
            reserve(path, snapshot_bytes)

    def drop_snapshots(self) -> None:
        """The ranks start from scratch: their snapshots and call records are of a life that is over."""
        for path in [*self.folder.glob(f"{SlotKind.SNAPSHOT}-*"), *self.folder.glob("record-*")]:
            path.unlink(missing_ok=True)

    def drop_empty_snapshots(self, used: Collection[int]) -> None:
        """Removes the snapshot slots of every rank but these, if none of its slots holds a state."""
        by_rank: dict[int, list[Path]] = {}
        for path in self.folder.glob(f"{SlotKind.SNAPSHOT}-*"):
            by_rank.setdefault(int(path.name.split("-")[1]), []).append(path)
        for rank, paths in by_rank.items():
            if rank not in used and not any(map(_is_sealed, paths)):
                for path in paths:
                    path.unlink(missing_ok=True)

    def snapshot_bytes(self, rank: int) -> int:
        """Returns what the snapshot slots of a rank take."""
        paths = [slot_path(self.folder, SlotKind.SNAPSHOT, rank, name) for name in SNAPSHOT_NAMES]
        return sum(path.stat().st_size for path in paths if path.exists())

    def slots(self) -> tuple[Slot, ...]:
        """Returns every sealed slot whose tables are whole. The data itself is checked by whoever restores from it."""
        paths = sorted(path for kind in SlotKind for path in self.folder.glob(f"{kind}-*"))
        return tuple(slot for path in paths if (slot := self._slot(path)) is not None)

    def _slot(self, path: Path) -> Slot | None:
        kind = SlotKind(path.name.partition("-")[0])
        with contextlib.suppress(FileNotFoundError, SnapshotError), path.open("rb", buffering=0) as file:
            fd = file.fileno()
            header = Header.from_page(os.pread(fd, HEADER_BYTES, 0))
            if header is None:
                return None
            known, peer_sets, unique = self._known.get(path, (None, (), False))
            if known != header:
                tables = Tables.from_bytes(header, os.pread(fd, header.tables_bytes, HEADER_BYTES))
                together = self._together.setdefault(header.rank, HeldTogether(header.rank)).of(tables)
                peer_sets = tuple(rank_set(header.rank, ranks, digest) for ranks, digest in together.items())
                unique = tables.layout.unique_bytes > 0
                self._known[path] = (header, peer_sets, unique)
            if Header.from_page(os.pread(fd, HEADER_BYTES, 0)) == header:  # nobody has begun to write it meanwhile
                return Slot(
                    kind=kind,
                    rank=header.rank,
                    generation=header.generation,
                    step=header.step,
                    peer_sets=peer_sets,
                    unique=unique,
                )
        return None


def _is_sealed(path: Path) -> bool:
    with path.open("rb") as file:
        return Header.from_page(file.read(HEADER_BYTES)) is not None


def rank_set(rank: int, ranks: tuple[int, ...], digest: int) -> RankSet:
    """Returns the set as a slot of that rank names it. `ranks`, `digest`: as HeldTogether says."""
    return RankSet(ranks=tuple(other for other in ranks if other != rank), digest=digest >> 1)  # a signed number on the wire
