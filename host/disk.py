"""How much room a file system has, and folders that are taken away."""

import contextlib
import os
import shutil
from pathlib import Path


def free_bytes(folder: str | os.PathLike[str]) -> int:
    """Returns what this user may still write below the folder."""
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize


def remove_folder(folder: Path) -> None:
    """Removes the folder, if it is there, with all that is in it; somebody else may be doing the same."""
    while folder.exists():
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
