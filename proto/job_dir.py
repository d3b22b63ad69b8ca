"""Where the folders of this user's running jobs are, for all who look; whoever made one keeps it locked while alive."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deadpool.host.errors import ConfigError


def jobs_dir() -> Path:
    """Returns `$XDG_RUNTIME_DIR/deadpool`, else `/tmp/deadpool-<uid>`: a folder with one for each job. It need not exist."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = base and os.access(base, os.W_OK | os.X_OK)
    return Path(base, "deadpool") if usable else Path(f"/tmp/deadpool-{os.getuid()}")


def runtime_folder() -> Path:
    """Returns the user's folder for running jobs, made if need be; ConfigError when someone else could get at it."""
    folder = jobs_dir()
    folder.mkdir(mode=0o700, exist_ok=True)
    stat = folder.lstat()
    if not folder.is_dir() or folder.is_symlink() or stat.st_uid != os.getuid() or stat.st_mode & 0o077:
        raise ConfigError(f"{folder}: must be a folder of yours that only you can enter (chmod 700), or set XDG_RUNTIME_DIR")
    return folder


@contextmanager
def locked_folder(name: str) -> Iterator[Path]:
    """Makes a folder of that name for running jobs, 0700, locked; removes it at the end. ConfigError when it is held."""
    runtime = runtime_folder()
    folder = runtime / name
    with _locked(runtime / ".lock", wait=True):  # one at a time makes, or removes, folders
        remove_stale(runtime)
        if folder.exists():
            raise ConfigError(f"{name}: a job of that name is running here; choose another or stop it first")
        folder.mkdir(mode=0o700)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
        os.close(lock)


def remove_stale(runtime: Path) -> None:
    """Removes the folders of those who were killed."""
    for folder in runtime.iterdir():
        if folder.is_dir() and not is_held(folder):
            shutil.rmtree(folder)


def is_held(folder: Path) -> bool:
    """Returns whether whoever made the folder lives."""
    try:
        with _locked(folder / "lock", wait=False):
            return False
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False


@contextmanager
def _locked(path: Path, *, wait: bool) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | (os.O_CREAT if wait else 0), 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(fd)
