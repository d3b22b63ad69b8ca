"""How a node on another machine gets into a job: through a folder that both see.

The launcher puts `token` (0600), `job.json` and where it stands (`folder`) beside the terms (proto/terms.py), where each
supervisor writes its endpoint, and takes them away at the end. A node on a machine that shares no folder is told endpoint and
token otherwise.
"""

import os
import time
from pathlib import Path

from deadpool.host.errors import ConfigError
from deadpool.proto.secret import read_private, write_private

_FILES = ("token", "job.json")
_FOLDER = "folder"
_POLL_S = 0.1


def share(job_dir: Path, folder: Path) -> None:
    write_private(folder / _FOLDER, os.getcwd())
    for name in reversed(_FILES):  # the token comes last: who finds it finds the rest
        write_private(folder / name, (job_dir / name).read_text())


def unshare(folder: Path) -> None:
    for name in (*_FILES, _FOLDER):
        (folder / name).unlink(missing_ok=True)


def stand_where_the_launcher_does(folder: Path) -> None:
    """Relative paths of the script mean the same on every node. ConfigError when this machine has no such folder."""
    path = Path((folder / _FOLDER).read_text())
    try:
        os.chdir(path)
    except OSError as error:
        raise ConfigError(f"{path}: the job was started there, and this machine cannot go there: {error.strerror}") from error


def read_shared(folder: Path, timeout_s: float) -> tuple[str, str]:
    """Returns (token, text of job.json); waits for them, for a file may be seen later on another machine.

    ConfigError when there is no such folder, or no job in it.
    """
    deadline_s = time.monotonic() + timeout_s
    while not (folder / "token").exists():
        if time.monotonic() > deadline_s:
            seen = "no job runs from there" if folder.is_dir() else "no such folder on this machine"
            raise ConfigError(f"{folder}: {seen}; it must be on storage that all nodes see (--log-dir, or --journal)")
        time.sleep(_POLL_S)
    return read_private(folder / "token"), (folder / "job.json").read_text()
