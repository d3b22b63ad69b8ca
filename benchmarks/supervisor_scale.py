"""What one supervisor costs, and how quick it is, with so many agents: a real supervisor process, agents that are simulated.

    python -m benchmarks.supervisor_scale [--sizes 64 512 2048] [--ranks 8] > scale.json

For each size: start-up, CPU at a heartbeat a second, memory, a rank's failure (when its order is at the last agent, when the job
runs again), the supervisor killed and started again, a node that falls silent, and whether any other node was lost. Agents are
played by several processes on the same machine (benchmarks/simulated_agents.py), each on a real connection. They take part of the
cores as well: `agents_cpu_share` says how much. An order has arrived when it was read from the socket. Progress goes to stderr,
JSON to stdout.
"""

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import machine
from benchmarks.simulated_agents import BEAT_S
from deadpool.agent.relay.group import full_s
from deadpool.proto.config import JobConfig, to_json
from deadpool.proto.job_dir import locked_folder
from deadpool.proto.secret import tls_token, write_private
from deadpool.supervisor.relays import GROUP

_TIMEOUT_S = 25.0
_STEADY_S = 8.0
_SETTLE_S = 2.0
_POLL_S = 0.05
_SPARES = 1
_COMMANDS = 5
_DEADPOOL = "from deadpool.cli.main import deadpool; deadpool()"
_HEARTBEAT_TIMEOUT_S = 3.0


class Agents:
    """So many agents, shared out among the processes."""

    def __init__(self, job_dir: Path, *, agents: int, ranks: int, processes: int, group: int, grpc: bool) -> None:
        own = {
            "--job-dir": job_dir,
            "--agents": agents,
            "--members": agents - _SPARES,
            "--ranks": ranks,
            "--every": processes,
            "--group": group,
        }
        command = [
            sys.executable,
            str(Path(__file__).with_name("simulated_agents.py")),
            *(str(part) for pair in own.items() for part in pair),
            *(["--grpc"] if grpc else []),
        ]
        self.ranks = ranks
        self._children = [
            subprocess.Popen([*command, "--first", str(first)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for first in range(processes)
        ]

    def ask(self, child: int = -1, **command: Any) -> list[dict[str, Any]]:
        """Returns the answers of that child, or of all."""
        asked = self._children if child < 0 else [self._children[child]]
        for each in asked:
            assert each.stdin is not None
            each.stdin.write(json.dumps(command) + "\n")
            each.stdin.flush()
        return [json.loads(each.stdout.readline()) for each in asked if each.stdout is not None]

    def of(self, node: int, **command: Any) -> dict[str, Any]:
        """Returns the answer of the child that plays this node."""
        return self.ask(node % len(self._children), node=node, **command)[0]

    def wait(self, kind: str, *, count: int, since_s: float) -> float:
        """Waits until so many have had such an order since then. Returns when the last one had it."""
        deadline_s = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline_s:
            answers = self.ask(do="last", kind=kind, since_s=since_s)
            if sum(each["had"] for each in answers) >= count:
                return float(max(each["last_s"] for each in answers))
            time.sleep(_POLL_S)
        raise TimeoutError(f"{sum(each['had'] for each in answers)} of {count} agents have had {kind} after {_TIMEOUT_S:g} s")

    def beats(self) -> tuple[int, float]:
        """Returns how many all have sent, and their CPU time in seconds."""
        answers = self.ask(do="beats")
        return sum(each["beats"] for each in answers), sum(each["cpu_s"] for each in answers)

    def end(self) -> None:
        for child in self._children:
            child.kill()
            child.wait()


class Supervisor:
    """The real one. `events`: those of its log."""

    def __init__(self, job_dir: Path, log_dir: Path) -> None:
        self._job_dir, self._log_dir = job_dir, log_dir
        self._child: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> float:
        """Returns when it was started."""
        at_s = time.monotonic()
        command = [sys.executable, "-m", "deadpool.supervisor.main", "--job-dir", str(self._job_dir)]
        self._child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        return at_s

    def kill(self) -> float:
        """SIGKILL. Returns when."""
        assert self._child is not None
        at_s = time.monotonic()
        self._child.kill()
        self._child.wait()
        return at_s

    def process(self) -> psutil.Process:
        assert self._child is not None
        return psutil.Process(self._child.pid)

    def cpu_s(self) -> float:
        times = self.process().cpu_times()
        return float(times.user + times.system)

    def events(self) -> list[dict[str, Any]]:
        path = self._log_dir / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def wait(self, event: str, *, count: int = 1) -> dict[str, Any]:
        """Waits for the event, the `count`th of its kind. Returns it."""
        deadline_s = time.monotonic() + _TIMEOUT_S
        while time.monotonic() < deadline_s:
            found = [each for each in self.events() if each["event"] == event]
            if len(found) >= count:
                return found[count - 1]
            time.sleep(0.05)
        raise TimeoutError(f"no event {event} after {_TIMEOUT_S:g} s")

    def end(self) -> None:
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(signal.SIGKILL)
            self._child.wait()


@contextlib.contextmanager
def _job(agents: int, ranks: int, *, tls: bool) -> Iterator[tuple[Path, Path]]:
    """Gives the job's folder and its logs."""
    with tempfile.TemporaryDirectory(prefix="deadpool-scale-") as folder:
        log_dir = Path(folder, "logs")
        config = JobConfig(
            job_id="scale",
            nnodes=agents - _SPARES,
            spares=_SPARES,
            nproc_per_node=ranks,
            command=("train.py",),
            python=sys.executable,
            log_dir=str(log_dir),
            journal=str(Path(folder, "journal")),
            together=True,
            standalone=False,
            heartbeat_timeout_s=_HEARTBEAT_TIMEOUT_S,
        )
        os.environ["XDG_RUNTIME_DIR"] = folder  # where `deadpool status` looks for jobs
        with locked_folder("scale") as job_dir:
            (job_dir / "job.json").write_text(to_json(config))
            write_private(job_dir / "token", tls_token("not a secret") if tls else "not a secret")
            yield job_dir, log_dir


def measure(agents: int, *, ranks: int, processes: int, group: int = 0, tls: bool = False) -> dict[str, Any]:
    """Returns all figures for this many agents."""
    with _job(agents, ranks, tls=tls) as (job_dir, log_dir):
        supervisor = Supervisor(job_dir, log_dir)
        simulated = None
        try:
            while not (job_dir / "endpoint.json").exists():
                time.sleep(_POLL_S)
            empty_bytes = supervisor.process().memory_info().rss
            began_s = time.monotonic()
            simulated = Agents(job_dir, agents=agents, ranks=ranks, processes=processes, group=group, grpc=tls)
            welcomed_s = simulated.wait("Welcome", count=agents, since_s=began_s) - began_s
            started_s = simulated.wait("StartRanks", count=agents - _SPARES, since_s=began_s) - began_s
            simulated.of(0, do="join")
            simulated.wait("WarmUp", count=agents, since_s=began_s)
            _say(agents, f"{agents} agents welcomed after {welcomed_s:.2f} s, ranks started after {started_s:.2f} s")
            in_full_s = full_s(agents) if group else 0.0  # until the first heartbeat of all behind relays was passed on in full
            time.sleep(_SETTLE_S + in_full_s)
            found: dict[str, Any] = {"all_welcomed_s": welcomed_s, "all_ranks_started_s": started_s}
            found |= _steady(supervisor, simulated, agents)
            found["bytes_per_agent"] = (supervisor.process().memory_info().rss - empty_bytes) // agents
            found |= _commands(agents)
            found |= _storm(supervisor, simulated, agents)
            found |= _silence(supervisor, simulated, agents)
            found |= _failure(supervisor, simulated, agents)
        finally:
            if simulated is not None:
                simulated.end()
            supervisor.end()
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in found.items()}


def _steady(supervisor: Supervisor, simulated: Agents, agents: int) -> dict[str, Any]:
    """CPU while nothing happens but a heartbeat a second from each."""
    (beats, agents_s), cpu_s, began_s = simulated.beats(), supervisor.cpu_s(), time.monotonic()
    time.sleep(_STEADY_S)
    (beats_then, agents_then_s), lasted_s = simulated.beats(), time.monotonic() - began_s
    beats, cpu_s, agents_s = beats_then - beats, supervisor.cpu_s() - cpu_s, agents_then_s - agents_s
    _say(agents, f"{cpu_s / lasted_s:.1%} of a core, {cpu_s / beats * 1e6:.0f} us per heartbeat, {beats / lasted_s:.0f}/s")
    return {
        "cpu_share": cpu_s / lasted_s,
        "cpu_us_per_heartbeat": cpu_s / beats * 1e6,
        "heartbeats_per_s": beats / lasted_s,
        "agents_cpu_share": agents_s / lasted_s,
    }


def _commands(agents: int) -> dict[str, Any]:
    """What a person waits for at the console: medians, from the start of the command to its end, compiled as pip installs it."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="deadpool-compiled-") as folder:
        settings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment = settings | {"PYTHONPYCACHEPREFIX": folder}
        for name, arguments in {"help_s": ["--help"], "status_s": ["status"]}.items():
            took_s = []
            for _ in range(1 + _COMMANDS):
                began_s = time.monotonic()
                command = [sys.executable, "-c", _DEADPOOL, *arguments]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
                took_s.append(time.monotonic() - began_s)
            found[name] = statistics.median(took_s[1:])  # the first one compiles
    _say(agents, f"deadpool status in {found['status_s']:.2f} s, --help in {found['help_s']:.2f} s")
    return found


def _failure(supervisor: Supervisor, simulated: Agents, agents: int) -> dict[str, Any]:
    """A rank is killed: its report, the order at the last agent, all running again; None: not within _TIMEOUT_S.

    All ranks answer then, so on few cores the agents take longer than on machines of their own.
    """
    node = agents // 2
    at_s = simulated.of(node, do="fail", rank=node * simulated.ranks)["at_s"]
    quiesced_s = simulated.wait("Quiesce", count=agents - _SPARES, since_s=at_s) - at_s  # the spare has fallen silent
    _say(agents, f"order at the last agent after {quiesced_s * 1e3:.0f} ms")
    total_s = None
    with contextlib.suppress(TimeoutError):
        total_s = float(supervisor.wait("recovered")["total_s"])
        _say(agents, f"recovered after {total_s:.2f} s")
    return {"order_at_last_agent_s": quiesced_s, "recovered_s": total_s}


def _storm(supervisor: Supervisor, simulated: Agents, agents: int) -> dict[str, Any]:
    """kill -9, and started again immediately, as a launcher would."""
    at_s = supervisor.kill()
    supervisor.start()
    back_s = simulated.wait("Welcome", count=agents, since_s=at_s) - at_s
    _say(agents, f"all back {back_s:.2f} s after the supervisor was killed")
    time.sleep(_SETTLE_S)
    return {"all_back_s": back_s}


def _silence(supervisor: Supervisor, simulated: Agents, agents: int) -> dict[str, Any]:
    """A node stops to speak, its connection stays. No other one may be lost, since the beginning."""
    silent = f"node{agents - 1}"  # the spare
    false = [each["node"] for each in supervisor.events() if each["event"] == "node_lost"]
    last_s = simulated.of(agents - 1, do="mute")["last_beat_s"]
    supervisor.wait("node_lost", count=len(false) + 1)
    noticed_s = time.monotonic() - last_s
    time.sleep(_HEARTBEAT_TIMEOUT_S)
    lost = [each["node"] for each in supervisor.events() if each["event"] == "node_lost" and each["node"] != silent]
    _say(agents, f"silence noticed after {noticed_s:.2f} s; lost without a reason: {lost}")
    return {"silence_noticed_s": noticed_s, "heartbeat_timeout_s": _HEARTBEAT_TIMEOUT_S, "false_silences": len(lost)}


def _say(agents: int, text: str) -> None:
    print(f"{agents:5d}: {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[64, 512, 2048])
    parser.add_argument("--relayed", type=int, nargs="*", default=[4096, 8192], help="with relays")
    parser.add_argument("--tls", type=int, nargs="*", default=[512], help="flat, by TLS")
    parser.add_argument("--ranks", type=int, default=8, help="of each node")
    parser.add_argument("--processes", type=int, default=2, help="that play the agents")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"machine": machine.describe(), "ranks_per_node": arguments.ranks, "beat_s": BEAT_S}
    own: dict[str, Any] = {"ranks": arguments.ranks, "processes": arguments.processes}
    result["flat"] = {size: measure(size, **own) for size in arguments.sizes}
    result["tls"] = {size: measure(size, **own, tls=True) for size in arguments.tls}
    result["with_relays"] = {size: measure(size, **own, group=GROUP) for size in arguments.relayed}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    main()
