"""What an agent needs to know of its job, and a folder of its own on this machine when the job's launcher is on another one.

--job-dir DIR                       the launcher's folder: it is on this machine
--job JOB                           the same, by the job's name
--shared DIR                        a folder that both machines see (proto/shared_folder.py)
--job JOB --supervisor HOST:PORT    no folder is shared; $DEADPOOL_TOKEN is the token
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deadpool.host.errors import ConfigError
from deadpool.proto.config import from_json
from deadpool.proto.job_dir import jobs_dir, locked_folder
from deadpool.proto.secret import read_private, write_private
from deadpool.proto.shared_folder import read_shared

TOKEN_VARIABLE = "DEADPOOL_TOKEN"
_SHARED_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFiles:
    """`job_dir`: for sockets, with the token; the ranks read it there. `shared`: where each supervisor writes its endpoint."""

    job_dir: Path
    token: str
    shared: Path | None = None
    remote: bool = False  # the launcher may be on another machine


@contextmanager
def open_job_files(
    *, job_dir: Path | None, job: str | None, shared: Path | None, supervisor: str | None, node_id: str
) -> Iterator[JobFiles]:
    """Yields the job's files; ConfigError when there is no such job, or no token for it."""
    given = os.environ.pop(TOKEN_VARIABLE, "")  # not for the ranks' eyes
    if job_dir is not None:
        yield JobFiles(job_dir=job_dir.absolute(), token=read_private(job_dir / "token"))
    elif shared is not None:
        token, job_json = read_shared(shared, _SHARED_S)
        with _own_folder(from_json(job_json).job_id, node_id, token, job_json) as folder:
            yield JobFiles(job_dir=folder, token=token, shared=shared.absolute(), remote=True)
    elif job is not None and supervisor is not None and given:
        with _own_folder(job, node_id, given, "") as folder:
            yield JobFiles(job_dir=folder, token=given, remote=True)
    else:
        folder = _running_here(job or "")
        yield JobFiles(job_dir=folder, token=read_private(folder / "token"))


@contextmanager
def _own_folder(job_id: str, node_id: str, token: str, job_json: str) -> Iterator[Path]:
    with locked_folder(f"{job_id}@{node_id}") as folder:
        write_private(folder / "token", token)
        if job_json:
            write_private(folder / "job.json", job_json)
        yield folder


def _running_here(job: str) -> Path:
    folder = jobs_dir() / job
    if job != Path(job).name or not (folder / "endpoint.json").exists():
        running = sorted(path.parent.name for path in jobs_dir().glob("*/endpoint.json"))
        raise ConfigError(f"--job {job}: no such job runs here; running: {', '.join(running) or 'none'} (in {jobs_dir()})")
    return folder
