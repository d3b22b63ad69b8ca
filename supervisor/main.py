"""deadpool-supervisor: reads the job's folder, listens, decides until the job's end. Its exit code is the job's."""

import argparse
import asyncio
import gc
import json
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from deadpool.host.addresses import join_host_port
from deadpool.host.console import tell
from deadpool.host.errors import ConfigError
from deadpool.host.lifetime import signal_at_parents_death
from deadpool.host.limits import raise_open_files, too_few_processes
from deadpool.host.ports import why_taken
from deadpool.proto.config import CHECKPOINT_SIGNAL, JobConfig, from_json, stop_signals
from deadpool.proto.secret import read_private, write_private
from deadpool.proto.terms import (
    CRASHED,
    SUPERSEDED,
    claim_term,
    is_superseded,
    journal_folder,
    journal_path,
    newest_term,
    write_endpoint,
    write_outcome,
)
from deadpool.supervisor.journal.event_log import EventLog
from deadpool.supervisor.journal.journal import LineFile
from deadpool.supervisor.journal.replay import read_past
from deadpool.supervisor.report.summary import summary
from deadpool.supervisor.runtime import Runtime
from deadpool.supervisor.service import serve

_CLOSE_GRACE_S = 1.0  # for calls in flight, once the job is over
LAST_SUMMARY = "summary.json"  # in the log folder: what --summary-json has, for `deadpool status` after the end
LAST_METRICS = "metrics.prom"  # in the log folder, with --metrics-port: the metrics as they were at the end
_THREADS = 8  # of this process, most of them gRPC's
_COLLECT_AFTER = 50_000, 20, 100  # objects, then rounds: with thousands of nodes a whole round takes longer than an order


def main() -> None:
    """The console script."""
    parser = argparse.ArgumentParser(prog="deadpool-supervisor", description=__doc__)
    parser.add_argument("--job-dir", type=Path, required=True, help="folder with job.json and token; endpoint.json is put there")
    parser.add_argument("--summary-json", type=Path, help="where to write how the job went")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: any free one)")
    parser.add_argument("--dashboard", metavar="HOST:PORT", help="where to serve the page; port 0: a free one (default: nowhere)")
    parser.add_argument("--with-parent", action="store_true", help="end when the process that started this one dies")
    parser.add_argument(
        "--dies-with-parent", action="store_true", help="the same, immediately and without a word: as its machine would"
    )
    parser.add_argument("--term", type=int, help="the term that was claimed for this process (default: it claims the next one)")
    arguments = parser.parse_args()
    raise_open_files()  # a connection for each node, and the journal
    gc.set_threshold(*_COLLECT_AFTER)
    if arguments.with_parent or arguments.dies_with_parent:
        end_with_parent(signal.SIGKILL if arguments.dies_with_parent else signal.SIGTERM)
    try:
        config = from_json((arguments.job_dir / "job.json").read_text())
        token = read_private(arguments.job_dir / "token")
        if reason := too_few_processes(_THREADS):
            raise ConfigError(reason)
        code = asyncio.run(_run(config, token, arguments))
    except (ConfigError, OSError) as error:
        tell(f"deadpool-supervisor: {error}")
        sys.exit(2)
    except Exception:
        tell(traceback.format_exc())
        sys.exit(CRASHED)
    sys.exit(code)


def end_with_parent(number: signal.Signals) -> None:
    """The signal comes when the parent dies, also if it died before this call."""
    if not signal_at_parents_death(number, os.getppid()):
        os.kill(os.getpid(), number)


async def _run(config: JobConfig, token: str, arguments: argparse.Namespace) -> int:
    log_dir, folder = Path(config.log_dir), journal_folder(config)
    for each in (log_dir, folder):
        each.mkdir(parents=True, exist_ok=True)
    term = arguments.term or _claim(folder)
    events = log_dir / "events.jsonl"
    past, clock, first = read_past(folder, term, config, events_at=events.stat().st_size if events.exists() else 0)
    journal = LineFile(journal_path(folder, term), fresh=True, sync=bool(config.journal))
    journal.write(json.dumps(first).encode())
    if journal.trouble:
        raise ConfigError(f"{journal.path}: cannot be written: {journal.trouble}")
    lines = LineFile(events)
    runtime = Runtime(
        config,
        journal=journal,
        events=EventLog(lines, _lines_from(events, past.events_at)),
        past=past,
        clock=clock,
        term=term,
        is_over=lambda: is_superseded(folder, term),
    )
    for number in stop_signals(config):
        asyncio.get_running_loop().add_signal_handler(number, runtime.stop, f"{number.name} received", 128 + number)
    if CHECKPOINT_SIGNAL not in stop_signals(config):
        asyncio.get_running_loop().add_signal_handler(CHECKPOINT_SIGNAL, runtime.write_checkpoint)
    host, port = arguments.host, arguments.port
    _check_free("--port", host, port)
    try:
        server, bound = await serve(runtime, token=token, host=host, port=port)
    except RuntimeError as error:
        raise ConfigError(f"--host {host} --port {port}: cannot listen there, choose another ({error})") from error
    endpoint = {"job_id": config.job_id, "endpoint": join_host_port(host, bound), "pid": os.getpid()}
    async with AsyncExitStack() as stack:
        with _needed_at_the_start(term):
            endpoint["dashboard"] = await stack.enter_async_context(_page(runtime, token, arguments.dashboard))
        with _needed_at_the_start(term):
            stack.enter_context(_metrics(runtime, host, config.metrics_port))
        write_private(arguments.job_dir / "endpoint.json", json.dumps(endpoint))
        write_endpoint(folder, term, endpoint)
        exit_code = await runtime.run()
    await server.stop(_CLOSE_GRACE_S)
    if exit_code != SUPERSEDED:
        for path in dict.fromkeys([log_dir / LAST_SUMMARY, arguments.summary_json]):
            if path is not None:
                _tried(path, partial(write_summary, path, runtime))
        if config.metrics_port is not None:
            _tried(log_dir / LAST_METRICS, lambda: write_last_metrics(log_dir / LAST_METRICS, runtime))
        _tried(folder, lambda: write_outcome(folder, exit_code))
    journal.close()
    lines.close()
    return exit_code


def _check_free(option: str, host: str, port: int) -> None:
    """Raises ConfigError when that port is taken: gRPC would say it in a log of its own, at length."""
    if reason := why_taken(host, port):
        raise ConfigError(f"{option} {port}: cannot listen at {join_host_port(host, port)}, choose another ({reason})")


@contextmanager
def _needed_at_the_start(term: int) -> Iterator[None]:
    """A supervisor that has taken over is needed more than what it shows: a port that is taken there is said, and ends no job."""
    try:
        yield
    except ConfigError as error:
        if term == 1:
            raise
        tell(f"deadpool-supervisor: {error}; the job goes on without")


@asynccontextmanager
async def _page(runtime: Runtime, token: str, where: str | None) -> AsyncIterator[str]:
    """Enters with the page's address, "" where none is wanted."""
    if where is None:
        yield ""
        return
    from deadpool.supervisor.dashboard.server import Dashboard, serving  # its library is loaded only where it is asked for

    host, _, port = where.rpartition(":")
    async with serving(Dashboard(runtime.status, runtime.events, token), host=host.strip("[]"), port=int(port)) as address:
        tell(f"deadpool: page: {address} (`deadpool dashboard` prints the link that opens it)")
        yield address


def _metrics(runtime: Runtime, host: str, port: int | None) -> AbstractContextManager[None]:
    if port is None:
        return nullcontext()
    from deadpool.supervisor.report.metrics import serving  # its library is loaded only where it is asked for

    return serving(runtime.measures, host=host, port=port)


def _claim(folder: Path) -> int:
    """Returns the term that this process has claimed: the first one, or the one after the newest."""
    term = newest_term(folder) + 1
    if not claim_term(folder, term):
        raise ConfigError(f"{folder}: another supervisor has just claimed term {term}")
    return term


def _lines_from(path: Path, offset: int) -> list[str]:
    """Returns the whole lines of the events after that byte."""
    data = path.read_bytes()[offset:] if path.exists() else b""
    return [line.decode(errors="replace") for line in data[: data.rfind(b"\n") + 1].splitlines()]


def _tried(where: Path, write: Callable[[], None]) -> None:
    """Says what could not be written: a full disk does not change how the job has ended."""
    try:
        write()
    except OSError as error:
        tell(f"deadpool-supervisor: {where}: {error.strerror}; not written")


def write_last_metrics(path: Path, runtime: Runtime) -> None:
    """For what has happened since the last scrape."""
    from deadpool.supervisor.report.metrics import exposition

    path.write_bytes(exposition(runtime.measures()))


def write_summary(path: Path, runtime: Runtime) -> None:
    path.write_text(json.dumps(summary(runtime.job.state, runtime.pulse), indent=2) + "\n")


if __name__ == "__main__":
    main()
