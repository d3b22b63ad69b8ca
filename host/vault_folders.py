"""Where the nodes' vaults lie on this machine, and which of them are nobody's any more.

Each is a folder with a `lock` file that is locked as long as the node's agent lives. One whose lock is free is of a dead agent:
the next agent removes it, and so does whoever has started the dead one.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from deadpool.host.disk import remove_folder

VAULT_ROOT = "/dev/shm"
LOCK = "lock"
_PREFIX = "deadpool-"


def vault_folder(root: str | os.PathLike[str], job_id: str, node_id: str) -> Path:
    return Path(root, f"{_PREFIX}{job_id}-{node_id}")


def remove_vault(folder: Path) -> None:
    """Removes what a node's agent has left, and nothing while an agent lives that it belongs to: two jobs may have one name."""
    try:
        with _try_lock(folder / LOCK) as locked:
            if locked:
                empty_and_remove(folder)
    except FileNotFoundError:  # removed by its agent, wholly or but for the folder
        remove_folder(folder)


def remove_leftovers(root: Path) -> None:
    """Removes the vaults of this user's dead agents."""
    for folder in root.glob(f"{_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # another agent was quicker
            if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.getuid():
                continue
            with _try_lock(folder / LOCK) as locked:
                if locked:
                    empty_and_remove(folder)


def empty_and_remove(folder: Path) -> None:
    """Removes the folder, the lock last: until then no other agent can take it for its own."""
    with contextlib.suppress(FileNotFoundError):  # whoever cleans up after the dead agent may be quicker
        for path in folder.iterdir():
            if path.name != LOCK:
                path.unlink(missing_ok=True)
    remove_folder(folder)


@contextlib.contextmanager
def _try_lock(path: Path) -> Iterator[bool]:
    """Enters with whether the lock could be had, and the file is still the one at that path."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield os.fstat(fd).st_ino == path.stat().st_ino
    except BlockingIOError:
        yield False
    finally:
        os.close(fd)
