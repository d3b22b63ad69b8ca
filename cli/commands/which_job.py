"""Which job a command is about: one that runs, or the logs of one that has ended."""

import json
from pathlib import Path
from typing import Any

import click

from deadpool.cli.commands.ended import EndedJob, ended_job, last_job, parse
from deadpool.cli.launcher.job_dirs import NotRunningError, find_job
from deadpool.cli.launcher.past_jobs import find_logs

EVENTS = "events.jsonl"
SUMMARY = "summary.json"

job_option = click.option("--job", "job_id", metavar="JOB", help="Which job, when several are running.")
json_option = click.option("--json", "as_text", is_flag=True, help="JSON for programs in place of a table.")


def find(job: str | None) -> Path | EndedJob:
    """Returns the folder of a running job, or what the logs of one that has ended say; ConfigError when there is neither."""
    try:
        return find_job(job)
    except NotRunningError:
        found = find_logs(job)
        if found is None:
            raise
        return read_ended(*found)


def read_ended(job_id: str, log_dir: Path, events: str = EVENTS) -> EndedJob:
    """Returns what the events in that folder, and the summary beside them, say of a job."""
    summary = log_dir / SUMMARY
    written = summary.read_text(errors="replace") if summary.is_file() else ""
    return ended_job(job_id, str(log_dir), (log_dir / events).read_text(errors="replace").splitlines(), written)


def log_dir_of(folder: Path) -> Path:
    """Returns the log folder of a running job."""
    from deadpool.proto.config import from_json

    return Path(from_json((folder / "job.json").read_text()).log_dir)


def events_of(found: Path | EndedJob) -> tuple[str, Path, list[dict[str, Any]]]:
    """Returns the job's name, its log folder, and its events so far: those of the last job where several have logged there."""
    if isinstance(found, EndedJob):
        lines = Path(found.log_dir, EVENTS).read_text(errors="replace").splitlines()
        return found.job_id, Path(found.log_dir), last_job([event for line in lines if (event := parse(line))])
    from deadpool.cli import client

    with client.connected(found) as job:
        return found.name, log_dir_of(found), [json.loads(line) for line in job.events(follow=False)]
