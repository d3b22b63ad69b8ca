"""Where a job's files live while it runs, and which jobs there are.

`$XDG_RUNTIME_DIR/deadpool/<job>/` (else `/tmp/deadpool-<uid>/<job>/`), 0700: `lock` (held by the launcher as long as it lives),
`job.json`, `token`, `endpoint.json` and the nodes' sockets. A folder whose lock is free belongs to a launcher that was killed;
the next launcher removes it. Of a job that spans machines the shared folder (proto/shared_folder.py) serves as well.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deadpool.cli.launcher.past_jobs import remember
from deadpool.host.errors import ConfigError, UnavailableError
from deadpool.proto.config import JobConfig, to_json
from deadpool.proto.job_dir import is_held, jobs_dir, locked_folder, runtime_folder
from deadpool.proto.secret import make_token, read_private, tls_token, write_private
from deadpool.proto.terms import newest_endpoint, read_outcome

_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}")
_SOCKET_PATH_BYTES_MAX = 107  # sockaddr_un, without the final zero


@dataclass(frozen=True, slots=True)
class SupervisorEndpoint:
    """Where a job's supervisor listens, as `host:port`, and its pid. `dashboard`: the page's address, "" without one."""

    job_id: str
    endpoint: str
    pid: int
    dashboard: str = ""


@contextmanager
def job_folder(config: JobConfig, token: str = "") -> Iterator[Path]:
    """Makes the job's folder with its lock, job.json and token (a new one unless it is given), and removes it at the end.

    Raises ConfigError when a job of that id runs already, or its id or path cannot be used.
    """
    if not _JOB_ID.fullmatch(config.job_id):
        raise ConfigError(f"--job-id {config.job_id}: use letters, digits, '.', '_' and '-', 48 at most")
    longest = jobs_dir() / config.job_id / f"node{config.nnodes + config.spares - 1}.sock"
    if len(os.fsencode(longest)) > _SOCKET_PATH_BYTES_MAX:
        raise ConfigError(f"{longest}: too long for a socket's path; set XDG_RUNTIME_DIR or --job-id to something shorter")
    with locked_folder(config.job_id) as folder:
        remember(config.job_id, config.log_dir)
        token = token or make_token()
        write_private(folder / "token", tls_token(token) if config.tls else token)
        write_private(folder / "job.json", to_json(config))
        yield folder


@contextmanager
def log_folder(folder: Path) -> Iterator[None]:
    """Makes the log folder, and removes what it has made, if it is empty still, when the job is refused."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--log-dir {folder}: {error.strerror}") from error
        yield
    except ConfigError:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def running_jobs() -> dict[str, Path]:
    """Returns the folder of every job that runs and whose supervisor listens."""
    folders = sorted(runtime_folder().iterdir())
    return {each.name: each for each in folders if (each / "endpoint.json").exists() and is_running(each)}


class NotRunningError(ConfigError):
    """No such job runs; it may have ended."""


def find_job(job_id: str | None) -> Path:
    """Returns the folder of that job, or of the only one that runs; NotRunningError when there is none, ConfigError for a choice.

    A path is the folder that a job's machines share, or its log folder.
    """
    if job_id is not None and "/" in job_id:
        for folder in (Path(job_id), Path(job_id, "journal")):
            if is_running(folder):
                return folder
        raise NotRunningError(f"--job {job_id}: no job runs from there, and none has left its events there")
    jobs = running_jobs()
    if job_id is not None:
        if job_id not in jobs:
            raise NotRunningError(f"no job {job_id!r} is running; running: {', '.join(jobs) or 'none'}")
        return jobs[job_id]
    if not jobs:
        raise NotRunningError(f"no job is running (looked in {runtime_folder()})")
    if len(jobs) > 1:
        raise ConfigError(f"{len(jobs)} jobs are running, choose one with --job: {', '.join(jobs)}")
    return next(iter(jobs.values()))


def read_endpoint(folder: Path) -> SupervisorEndpoint:
    path = folder / "endpoint.json"
    if not path.exists():
        path = folder / f"endpoint-{newest_endpoint(folder)[0]}.json"
    if not path.exists():
        raise UnavailableError(f"{folder}: no supervisor has listened yet")
    return SupervisorEndpoint(**json.loads(read_private(path)))


def is_running(folder: Path) -> bool:
    """Returns whether the job's launcher lives."""
    if (folder / "lock").exists():
        return is_held(folder)
    return (folder / "token").exists() and read_outcome(folder) is None
