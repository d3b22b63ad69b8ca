"""How much room a file system has."""

import os


def free_bytes(folder: str | os.PathLike[str]) -> int:
    """Returns what this user may still write below the folder."""
    stat = os.statvfs(folder)
    return stat.f_bavail * stat.f_frsize
