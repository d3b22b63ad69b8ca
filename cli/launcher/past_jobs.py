"""Where the logs of this user's last jobs are: what `deadpool status`, `events` and `logs` answer from once a job has ended.

A list in the user's folder for running jobs (`.jobs.json`), the newest last. A job is on it from its start, so that one
whose launcher is killed is on it as well.
"""

import json
from pathlib import Path

from deadpool.proto.job_dir import runtime_folder
from deadpool.proto.secret import write_private

_LIST = ".jobs.json"
_KEPT = 50  # the older ones are found by their log folder alone
_EVENTS = "events.jsonl"


def remember(job_id: str, log_dir: str) -> None:
    known = [each for each in _known() if each["log_dir"] != log_dir][-(_KEPT - 1) :]
    write_private(runtime_folder() / _LIST, json.dumps([*known, {"job_id": job_id, "log_dir": log_dir}]))


def find_logs(job: str | None) -> tuple[str, Path] | None:
    """Returns (job's id, log folder) of the newest job of that name, of the newest of all (None), or of that log folder (a path).

    None when there is no such job, or its logs are gone.
    """
    if job is not None and "/" in job:
        folder = Path(job).absolute()
        names = [each["job_id"] for each in _known() if each["log_dir"] == str(folder)]
        return ((names or [folder.name])[-1], folder) if (folder / _EVENTS).is_file() else None
    for each in reversed(_known()):
        folder = Path(each["log_dir"])
        if job in (None, each["job_id"]) and (folder / _EVENTS).is_file():
            return each["job_id"], folder
    return None


def _known() -> list[dict[str, str]]:
    try:
        known: list[dict[str, str]] = json.loads((runtime_folder() / _LIST).read_text())
    except (OSError, ValueError):
        return []
    return known
