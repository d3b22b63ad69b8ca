"""Files in /dev/shm that an MPI library makes for processes of one machine, and leaves there when one of them is killed."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

_ROOT = "/dev/shm"
_NAMES = re.compile(r"(mpich_shm_|sm_segment|vader_segment|Intel_MPI_|psm[23]?_shm)[^/ ]*")  # no " (deleted)" behind it


def unlink_mapped_segments() -> None:
    """Removes the names of those that this process has mapped: all that need them have them, and nothing is left to remove."""
    for path in mapped_segments(Path("/proc/self/maps").read_text()):
        path.unlink(missing_ok=True)


def mapped_segments(maps: str) -> set[Path]:
    """Returns the segments of an MPI library in a process's table of mappings (/proc/PID/maps)."""
    paths = (Path(line.split(maxsplit=5)[5]) for line in maps.splitlines() if f" {_ROOT}/" in line)
    return {path for path in paths if path.parent == Path(_ROOT) and _NAMES.fullmatch(path.name)}


def remove_segments(*, since_s: float) -> None:
    """Removes segments that were made since then (wall clock) and that no process of this user has mapped any more."""
    made = {path for path in Path(_ROOT).iterdir() if _NAMES.fullmatch(path.name) and _is_ours(path, since_s)}
    if made:
        for path in made - set(_in_use()):
            path.unlink(missing_ok=True)


def _is_ours(path: Path, since_s: float) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return status.st_uid == os.getuid() and status.st_ctime >= since_s


def _in_use() -> Iterator[Path]:
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                yield from mapped_segments((process / "maps").read_text())
            except (OSError, ValueError):  # it has ended, or is another user's
                continue
