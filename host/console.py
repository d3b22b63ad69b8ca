"""A line for people on stderr. A console that is gone, or a file on a full disk, is no reason to end anything."""

import contextlib
import os

_STDERR = 2


def tell(line: str) -> None:
    """Not through sys.stderr: what that could not write it would try again at the exit, whose code becomes 120 then."""
    with contextlib.suppress(OSError):
        os.write(_STDERR, f"{line}\n".encode(errors="backslashreplace"))
