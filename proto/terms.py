"""Terms: which of a job's supervisors gives the orders. Files in the journal's folder, the only thing that supervisors share.

    term-N              claims term N, made exclusively: each number has one supervisor, ever
    journal-N.jsonl     what term N has acted on (supervisor/journal/journal.py)
    endpoint-N.json     where term N listens
    outcome.json        how the job ended

A supervisor writes a line, and only if no higher term is claimed then, carries out what follows from it. Whoever takes over
claims first and reads then. So either the line was there to be read, or its orders are never given: two terms never both give
orders. This holds wherever one machine sees what another one has written (a local disk, a cluster file system, NFS with `noac`).
"""

import contextlib
import json
import os
import re
from pathlib import Path

from deadpool.host.errors import ConfigError
from deadpool.proto.config import JobConfig
from deadpool.proto.secret import write_private

_CLAIM = re.compile(r"term-(\d+)")
_ENDPOINT = re.compile(r"endpoint-(\d+)\.json")
_ROOM_BYTES = 1 << 20  # less room than this at the start is none
SUPERSEDED = 3  # exit code of a supervisor that has found a higher term claimed
CRASHED = 70  # exit code of one that was ended by an error of ours: another one may do better


def journal_folder(config: JobConfig) -> Path:
    """Returns the folder: in the shared one of --journal, else with the logs."""
    return Path(config.journal, config.job_id) if config.journal else Path(config.log_dir, "journal")


def journal_path(folder: Path, term: int) -> Path:
    return folder / f"journal-{term}.jsonl"


def clear_journal(folder: Path) -> None:
    """Makes the folder, with nothing of an earlier job in it; ConfigError when no journal can be written there."""
    probe = folder / ".probe"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        with probe.open("wb") as file:
            file.write(bytes(_ROOM_BYTES))
            os.fsync(file.fileno())
        probe.unlink()
    except OSError as error:
        with contextlib.suppress(OSError):
            probe.unlink()
        raise ConfigError(f"{folder}: no journal can be written there: {error.strerror}") from error


def newest_term(folder: Path) -> int:
    """Returns the highest term that was claimed, 0 when there is none."""
    return max(_numbers(folder, _CLAIM), default=0)


def claim_term(folder: Path, term: int) -> bool:
    """Returns whether the term is this caller's now; False when somebody was quicker. It is on the disk when this returns."""
    try:
        fd = os.open(folder / f"term-{term}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    try:
        os.write(fd, f"{os.uname().nodename} {os.getpid()}\n".encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(folder)
    return True


def is_superseded(folder: Path, term: int) -> bool:
    return (folder / f"term-{term + 1}").exists()


def write_endpoint(folder: Path, term: int, endpoint: dict[str, object]) -> None:
    write_private(folder / f"endpoint-{term}.json", json.dumps(endpoint))


def newest_endpoint(folder: Path) -> tuple[int, str]:
    """Returns (term, HOST:PORT) of the highest term that listens or did; (0, "") when none ever has."""
    term = max(_numbers(folder, _ENDPOINT), default=0)
    return (term, str(json.loads((folder / f"endpoint-{term}.json").read_text())["endpoint"])) if term else (0, "")


def write_outcome(folder: Path, exit_code: int) -> None:
    write_private(folder / "outcome.json", json.dumps({"exit_code": exit_code}))


def read_outcome(folder: Path) -> int | None:
    """Returns the job's exit code once a supervisor has ended it."""
    path = folder / "outcome.json"
    return int(json.loads(path.read_text())["exit_code"]) if path.exists() else None


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # not every file system can
            os.fsync(fd)
    finally:
        os.close(fd)


def _numbers(folder: Path, pattern: re.Pattern[str]) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        return [int(match[1]) for name in os.listdir(folder) if (match := pattern.fullmatch(name))]
    return []
