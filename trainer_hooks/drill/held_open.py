"""What a rank's processes have open for writing or listen on: a hot stand-in has it beside the rank that it may replace.

Read from /proc. Of a joiner it is taken down before it goes live, in the very place where a hot stand-in waits.
"""

import contextlib
import ipaddress
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from deadpool.proto.drill import FOLDER

_PROC = Path("/proc")
_NO_FILES = ("/dev/", "/proc/", "/sys/", "/memfd:")
_DELETED = " (deleted)"
_LISTENS, _UNCONNECTED = "0A", "07"  # of TCP, of UDP
_UNIX_LISTENS = 0x10000


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOpen:
    """`writes`: files, those that are only appended to not among them. `listens`: addresses, and paths of sockets."""

    writes: tuple[str, ...] = ()
    appends: tuple[str, ...] = ()
    listens: tuple[str, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "HeldOpen":
        """Raises ValueError (or TypeError) when the text is none."""
        return cls(**{name: tuple(values) for name, values in json.loads(text).items()})

    def shared_with(self, other: "HeldOpen") -> Iterator[str]:
        """Yields what both have, and only one process may have."""
        yield from (f"writes {path}" for path in self.writes if path in other.writes + other.appends)
        yield from (f"listens on {address}" for address in self.listens if address in other.listens)


def held_open_path(log_dir: Path, *, generation: int, rank: int, joins: bool) -> Path:
    """Returns the file for what this rank's processes had open: when they joined, or living, at the boundary."""
    return log_dir / FOLDER / "open" / f"generation-{generation}-rank-{rank}-{'joins' if joins else 'lives'}.json"


def held_open(session: int, ours: Sequence[Path], *, proc: Path = _PROC) -> HeldOpen:
    """Returns what the processes of this session have open. `ours`: folders of DeadPool's own, which are left out."""
    writes, appends, sockets = set[str](), set[str](), set[str]()
    for pid in _of_session(session, proc):
        for target, flags in _descriptors(proc / pid):
            if target.startswith("socket:["):
                sockets.add(target.removeprefix("socket:[").rstrip("]"))
            elif flags & os.O_ACCMODE != os.O_RDONLY and _is_file(target, ours):
                (appends if flags & os.O_APPEND else writes).add(target)
    listens = sorted(address for inode, address in _listening(proc / "self" / "net") if inode in sockets)
    return HeldOpen(writes=tuple(sorted(writes)), appends=tuple(sorted(appends)), listens=tuple(listens))


def _is_file(target: str, ours: Sequence[Path]) -> bool:
    shown = target.startswith("/") and not target.startswith(_NO_FILES) and not target.endswith(_DELETED)
    return shown and not any(Path(target).is_relative_to(folder) for folder in ours)


def _of_session(session: int, proc: Path) -> Iterator[str]:
    for name in os.listdir(proc):
        with contextlib.suppress(OSError, IndexError):
            if name.isdecimal() and int((proc / name / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                yield name


def _descriptors(process: Path) -> Iterator[tuple[str, int]]:
    """Yields each descriptor's target and flags; those that are closed meanwhile are left out."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = os.listdir(process / "fd")
    for name in names:
        with contextlib.suppress(OSError, StopIteration):
            lines = (process / "fdinfo" / name).read_text().splitlines()
            flags = next(line.split()[1] for line in lines if line.startswith("flags:"))
            yield os.readlink(process / "fd" / name), int(flags, 8)


def _listening(net: Path) -> Iterator[tuple[str, str]]:
    """Yields (inode, address) of all sockets of the machine that wait for whoever comes."""
    for table, state in (("tcp", _LISTENS), ("tcp6", _LISTENS), ("udp", _UNCONNECTED), ("udp6", _UNCONNECTED)):
        for row in _rows(net / table):
            if row[3] == state:
                yield row[9], f"{table.rstrip('6')} {_address(row[1])}"
    for row in _rows(net / "unix"):
        if len(row) > 7 and int(row[3], 16) & _UNIX_LISTENS:
            yield row[6], f"unix {row[7]}"


def _rows(table: Path) -> list[list[str]]:
    try:
        return [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return []


def _address(text: str) -> str:
    """Returns host:port as people write it; the kernel writes each word of the address in the machine's order."""
    host, _, port = text.partition(":")
    packed = b"".join(bytes.fromhex(host[begin : begin + 8])[::-1] for begin in range(0, len(host), 8))
    shown = ipaddress.ip_address(packed)
    return f"{f'[{shown}]' if shown.version == 6 else shown}:{int(port, 16)}"


def shared_by_joiners(log_dir: Path, generations: Mapping[int, int], world_size: int) -> tuple[bool, list[str]]:
    """Returns (whether any joiner was looked at, what each had open of what its living rank has).

    `generations`: of joiners -> that in which the ranks that they replaced were looked at.
    """
    looked, found = False, list[str]()
    for generation, living in generations.items():
        for rank in range(world_size):
            joiner = _read(held_open_path(log_dir, generation=generation, rank=rank, joins=True))
            lives = _read(held_open_path(log_dir, generation=living, rank=rank, joins=False))
            if joiner is not None and lives is not None:
                looked = True
                found += [f"rank {rank} {what}" for what in joiner.shared_with(lives)]
    return looked, list(dict.fromkeys(found))


def _read(path: Path) -> HeldOpen | None:
    try:
        return HeldOpen.from_json(path.read_text())
    except (OSError, ValueError, TypeError):
        return None
