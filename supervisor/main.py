"""deadpool-supervisor: reads the job's folder, listens, decides until the job's end. Its exit code is the job's."""

import argparse
import asyncio
import ctypes
import json
import os
import signal
import sys
from pathlib import Path

from deadpool.proto.config import JobConfig, from_json
from deadpool.proto.errors import ConfigError
from deadpool.proto.secret import read_private, write_private
from deadpool.supervisor.event_log import EventLog
from deadpool.supervisor.journal import LineFile
from deadpool.supervisor.runtime import Runtime
from deadpool.supervisor.service import serve
from deadpool.supervisor.summary import summary

_PR_SET_PDEATHSIG = 1
_CLOSE_GRACE_S = 1.0  # for calls in flight, once the job is over
_EXIT_CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}


def main() -> None:
    """The console script."""
    parser = argparse.ArgumentParser(prog="deadpool-supervisor", description=__doc__)
    parser.add_argument("--job-dir", type=Path, required=True, help="folder with job.json and token; endpoint.json is put there")
    parser.add_argument("--summary-json", type=Path, help="where to write how the job went")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: any free one)")
    parser.add_argument("--with-parent", action="store_true", help="end when the process that started this one dies")
    arguments = parser.parse_args()
    if arguments.with_parent:
        end_with_parent()
    try:
        config = from_json((arguments.job_dir / "job.json").read_text())
        token = read_private(arguments.job_dir / "token")
        code = asyncio.run(_run(config, token, arguments.job_dir, arguments.host, arguments.port, arguments.summary_json))
    except (ConfigError, OSError) as error:
        print(f"deadpool-supervisor: {error}", file=sys.stderr)
        sys.exit(2)
    sys.exit(code)


def end_with_parent() -> None:
    """SIGTERM comes when the parent dies, also if it died before this call."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


async def _run(config: JobConfig, token: str, job_dir: Path, host: str, port: int, summary_json: Path | None) -> int:
    log_dir = Path(config.log_dir)
    log_dir.mkdir(parents=True, exist_ok=True)
    journal = LineFile(log_dir / "journal.jsonl", fresh=True)
    lines = LineFile(log_dir / "events.jsonl")
    runtime = Runtime(config, journal=journal, events=EventLog(lines))
    for number, exit_code in _EXIT_CODES.items():
        asyncio.get_running_loop().add_signal_handler(number, runtime.stop, f"{number.name} received", exit_code)
    try:
        server, bound = await serve(runtime, token=token, host=host, port=port)
    except RuntimeError as error:
        raise ConfigError(f"--host {host} --port {port}: cannot listen there, choose another ({error})") from error
    endpoint = {"job_id": config.job_id, "endpoint": f"{host}:{bound}", "pid": os.getpid()}
    write_private(job_dir / "endpoint.json", json.dumps(endpoint))
    exit_code = await runtime.run()
    await server.stop(_CLOSE_GRACE_S)
    if summary_json is not None:
        write_summary(summary_json, runtime)
    journal.close()
    lines.close()
    return exit_code


def write_summary(path: Path, runtime: Runtime) -> None:
    path.write_text(json.dumps(summary(runtime.job.state, runtime.pulse), indent=2) + "\n")


if __name__ == "__main__":
    main()
