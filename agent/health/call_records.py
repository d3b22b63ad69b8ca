"""The call records of this node's ranks; each appears when its rank joins, and anew when another process plays it."""

import contextlib
from pathlib import Path

from deadpool.agent.health.fd_exhaustion import skipped_when_exhausted
from deadpool.proto.call_record import RECORD_BYTES, CallRecord, Head, record_path
from deadpool.proto.messages import GroupCall, RankCalls


class CallRecords:
    def __init__(self, vault_dir: Path) -> None:
        self._vault_dir = vault_dir
        self._open: dict[int, tuple[int, CallRecord]] = {}  # rank -> inode, record

    def head(self, rank: int, pid: int) -> Head:
        """Returns the head that the process `pid` has written for this rank; an empty one when it has not (yet)."""
        record = self._record(rank)
        head = record.head() if record is not None else Head()
        return head if head.pid == pid else Head()

    def hold(self, rank: int, pid: int, step: int | None) -> None:
        """Tells the process `pid` which step it must not leave yet, None for none; no effect before it has written."""
        record = self._record(rank)
        if record is not None and record.head().pid == pid:
            record.hold(step)

    def numbers(self, rank: int, pid: int) -> dict[str, float]:
        """Returns what the script of the process `pid` has reported."""
        record = self._record(rank)
        return record.numbers() if record is not None and record.head().pid == pid else {}

    def calls(self, rank: int, pid: int) -> RankCalls:
        """Returns what the process `pid` has written of its groups' calls; nothing when it has not (yet)."""
        record, step = self._record(rank), self.head(rank, pid).step
        groups = record.groups() if record is not None and record.head().pid == pid else []
        return RankCalls(
            rank=rank,
            pid=pid,
            step=step,
            groups=tuple(
                GroupCall(group=each.group, operation=each.operation, entered=each.entered, completed=each.completed)
                for each in groups
            ),
        )

    def _record(self, rank: int) -> CallRecord | None:
        path = record_path(self._vault_dir, rank)
        with contextlib.suppress(FileNotFoundError), skipped_when_exhausted():
            stat = path.stat()
            inode, record = self._open.get(rank, (0, None))
            if inode != stat.st_ino and stat.st_size == RECORD_BYTES:
                if record is not None:
                    record.close()
                record = CallRecord(path, create=False)
                self._open[rank] = (stat.st_ino, record)
            return record
        return None

    def close(self) -> None:
        for _, record in self._open.values():
            record.close()
        self._open.clear()
