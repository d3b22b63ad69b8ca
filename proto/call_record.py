"""The call record: a rank's counters in shared memory, written by the rank, read by its agent at any moment.

One file `record-<rank>` per rank: a head (generation, step, commit, stall, pid), the numbers that the script has reported, and a
table of groups. One word is the agent's: the step that the rank does not leave before an injection was carried out. Each
collective of a group writes its number, name and time on entry and on completion: a hang names its culprit (the rank that never
entered call 1234 of dp_0). Writes are single aligned stores by one thread each; a reader may see a row half updated and must not
mind.
"""

import contextlib
import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

RECORD_BYTES = 64 << 10
_HEAD = struct.Struct("<qqqqqqqqqqqqqqq")  # as in Head
_COMMIT_AT = 5 * 8
_SCRIPT_ENDED_AT = _HEAD.size  # one byte, which no write of the head touches
_HELD_AT = 124  # the agent's word: 0, or one more than the step
_HELD = struct.Struct("<i")
_NUMBERS_AT = 128
_NUMBER = struct.Struct("<32sd")
MAX_NUMBERS = 16
MAX_NUMBER_NAME = 32
TOKENS = "tokens"  # the number that is summed up by who reports it
_GROUPS_AT = _NUMBERS_AT + MAX_NUMBERS * _NUMBER.size
_ROW = struct.Struct("<48s24sqqqq")  # group, operation, entered, completed, entered_ns, completed_ns
MAX_GROUPS = (RECORD_BYTES - _GROUPS_AT) // _ROW.size


def record_path(vault_dir: Path, rank: int, hot_pid: int = 0) -> Path:
    """`hot_pid`: of a hot stand-in, whose record lies aside until it is the rank's process."""
    return vault_dir / (f"record-{rank}.{hot_pid}" if hot_pid else f"record-{rank}")


def record_counts(vault_dir: Path, rank: int, pid: int) -> None:
    """This process, which may have been a hot stand-in, is the rank's from now on."""
    with contextlib.suppress(FileNotFoundError):
        record_path(vault_dir, rank, pid).rename(record_path(vault_dir, rank))


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """`step`: the step in progress, -1 before the first. Times in CLOCK_MONOTONIC ns; 0 when there is none yet.

    `yielded`: as in RankPrepared; -1 when it is not known. `script_ended`: by itself and without an error; the process exits.
    `until`: the step with which the present loop ends. `stepped_ns`: that completed steps have taken, summed; `waited_ns`: of
    that, with a collective under way, -1 where that is not known. `replicated_bytes`: sent to the holders of its replicas.
    `interval`: the steps from one protected state to the next, 0 while none is; `busy_ns`: what protecting one takes.
    """

    pid: int = 0
    generation: int = 0
    step: int = -1
    step_began_ns: int = 0
    steps_done: int = 0
    commit_step: int = -1
    stall_ns: int = 0
    typical_step_ns: int = 0
    yielded: int = -1
    until: int = 0
    stepped_ns: int = 0
    waited_ns: int = 0
    replicated_bytes: int = 0
    interval: int = 0
    busy_ns: int = 0
    script_ended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCalls:
    """`entered` and `completed` count the group's calls; `operation` is the one entered last."""

    group: str
    operation: str
    entered: int
    completed: int
    entered_ns: int
    completed_ns: int


class CallRecord:
    """The writer's side (one process) or, opened with `create=False`, a reader's."""

    def __init__(self, path: Path, *, create: bool) -> None:
        if create:
            _make(path)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), RECORD_BYTES)
        self._rows = 0
        self._free: list[int] = []
        self._numbers: dict[str, int] = {}  # the writer's: name -> row

    def write_head(self, head: Head) -> None:
        _HEAD.pack_into(
            self._map, 0, head.pid, head.generation, head.step, head.step_began_ns, head.steps_done, head.commit_step,
            head.stall_ns, head.typical_step_ns, head.yielded, head.until, head.stepped_ns, head.waited_ns, head.replicated_bytes,
            head.interval, head.busy_ns,
        )  # fmt: skip

    def write_commit(self, commit_step: int) -> None:
        """Writes the head's newest commit alone."""
        struct.pack_into("<q", self._map, _COMMIT_AT, commit_step)

    def end_script(self) -> None:
        """The script has ended by itself, without an error."""
        self._map[_SCRIPT_ENDED_AT] = 1

    def hold(self, step: int | None) -> None:
        """The agent's: an injection waits for this step; None when none does any more."""
        _HELD.pack_into(self._map, _HELD_AT, 0 if step is None else step + 1)

    def held(self) -> int | None:
        """Returns the step that an injection waits for, None when none does."""
        (following,) = _HELD.unpack_from(self._map, _HELD_AT)
        return following - 1 if following else None

    def head(self) -> Head:
        """Returns the newest head; an empty one (no step, no commit) as long as none was written."""
        (
            pid, generation, step, began, done, commit, stall, typical, yielded, until, stepped, waited, replicated, interval,
            busy,
        ) = _HEAD.unpack_from(self._map)  # fmt: skip
        if pid == 0:
            return Head()
        return Head(
            pid=pid, generation=generation, step=step, step_began_ns=began, steps_done=done, commit_step=commit,
            stall_ns=stall, typical_step_ns=typical, yielded=yielded, until=until, stepped_ns=stepped, waited_ns=waited,
            replicated_bytes=replicated, interval=interval, busy_ns=busy,
            script_ended=bool(self._map[_SCRIPT_ENDED_AT]),
        )  # fmt: skip

    def report(self, name: str, value: float) -> None:
        """Writes a number of the script, over the last one of that name. ValueError: there is no row left for another name."""
        if name not in self._numbers and len(self._numbers) == MAX_NUMBERS:
            raise ValueError(f"{name}: there are {MAX_NUMBERS} numbers already: {', '.join(sorted(self._numbers))}")
        at = _NUMBERS_AT + self._numbers.get(name, len(self._numbers)) * _NUMBER.size
        struct.pack_into("<d", self._map, at + MAX_NUMBER_NAME, value)
        if name not in self._numbers:
            self._numbers[name] = len(self._numbers)
            struct.pack_into("<32s", self._map, at, name.encode())

    def numbers(self) -> dict[str, float]:
        """Returns the newest numbers of the script by their names."""
        rows = (_NUMBER.unpack_from(self._map, _NUMBERS_AT + row * _NUMBER.size) for row in range(MAX_NUMBERS))
        return {name.rstrip(b"\0").decode(errors="replace"): value for name, value in rows if name[0]}

    def add_group(self, name: str) -> int:
        """Returns the row for a new group; groups beyond MAX_GROUPS share the last row."""
        if self._free:
            row = self._free.pop()
        else:
            row = min(self._rows, MAX_GROUPS - 1)
            self._rows += 1
        _ROW.pack_into(self._map, _GROUPS_AT + row * _ROW.size, name.encode(errors="backslashreplace")[-48:], b"", 0, 0, 0, 0)
        return row

    def rename_group(self, row: int, name: str) -> None:
        struct.pack_into("<48s", self._map, _GROUPS_AT + row * _ROW.size, name.encode(errors="backslashreplace")[-48:])

    def remove_group(self, row: int) -> None:
        """Empties the row for another group; the last one is shared, and stays."""
        if row < MAX_GROUPS - 1:
            _ROW.pack_into(self._map, _GROUPS_AT + row * _ROW.size, b"", b"", 0, 0, 0, 0)
            self._free.append(row)

    def entered(self, row: int, operation: bytes, number: int) -> None:
        at = _GROUPS_AT + row * _ROW.size
        struct.pack_into("<24sq", self._map, at + 48, operation, number)
        struct.pack_into("<q", self._map, at + 88, time.monotonic_ns())

    def completed(self, row: int, number: int) -> None:
        at = _GROUPS_AT + row * _ROW.size
        struct.pack_into("<q", self._map, at + 80, number)
        struct.pack_into("<q", self._map, at + 96, time.monotonic_ns())

    def groups(self) -> list[GroupCalls]:
        found = []
        for row in range(MAX_GROUPS):
            group, operation, entered, completed, entered_ns, completed_ns = _ROW.unpack_from(
                self._map, _GROUPS_AT + row * _ROW.size
            )
            if not group.rstrip(b"\0"):
                continue
            found.append(
                GroupCalls(
                    group=group.rstrip(b"\0").decode(errors="replace"),
                    operation=operation.rstrip(b"\0").decode(errors="replace"),
                    entered=entered,
                    completed=completed,
                    entered_ns=entered_ns,
                    completed_ns=completed_ns,
                )
            )
        return found

    def close(self) -> None:
        self._map.close()


def _make(path: Path) -> None:
    """Makes the file anew, with its memory taken now: a write to the mapping cannot ask for it.

    Where there is no room, the file of the process before is used again. OSError when there is none.
    """
    unborn = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(unborn, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.posix_fallocate(fd, 0, RECORD_BYTES)
        unborn.rename(path)
    except OSError:
        unborn.unlink()
        if not path.exists() or path.stat().st_size != RECORD_BYTES:
            raise
        with path.open("r+b") as file:  # its readers have it mapped: it must not become shorter
            file.write(bytes(RECORD_BYTES))
    finally:
        os.close(fd)
