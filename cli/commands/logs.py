"""A rank's output out of its log files: whichever node it lived on, generation by generation."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(r"rank-(\d+)-gen(\d+)\.log(\.1)?")


class RankOutput:
    """`new()` returns what has come since the last call, the oldest first; files may be renamed and turned over meanwhile."""

    def __init__(self, log_dir: Path, rank: int) -> None:
        self._log_dir = log_dir
        self._rank = rank
        self._read: dict[int, int] = {}  # inode -> bytes read

    def new(self) -> bytes:
        return b"".join(self._rest(path) for path in self.files())

    def files(self) -> list[Path]:
        """Returns the rank's log files by generation, a file's earlier part before it."""
        return [path for _, _, path in sorted(self._found())]

    def _found(self) -> Iterator[tuple[int, bool, Path]]:
        for path in self._log_dir.glob(f"*/rank-{self._rank}-gen*"):
            if match := _NAME.fullmatch(path.name):
                yield int(match[2]), match[3] is None, path

    def _rest(self, path: Path) -> bytes:
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                begin = self._read.get(status.st_ino, 0)
                file.seek(begin if begin <= status.st_size else 0)
                data = file.read()
                self._read[status.st_ino] = file.tell()
        except FileNotFoundError:  # turned over between the look and the opening: it is read under its new name next time
            return b""
        return data


def last_lines(text: bytes, count: int) -> bytes:
    """Returns the last lines, all of them when `count` is 0."""
    return b"".join(text.splitlines(keepends=True)[-count:])
