"""The MPI pairs that this node has started: their processes, what they say, and the end of all that they leave."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import assert_never

import psutil

from deadpool.agent.edges.decisions import Decision, Edges, EndPair, StartPair
from deadpool.agent.edges.launcher import MpiLauncher, in_slurm, is_root, pair_command, pair_environment, sidecar_command
from deadpool.agent.edges.segments import remove_segments
from deadpool.host.text import printable
from deadpool.host.vault_folders import vault_folder
from deadpool.proto.messages import EdgeChanged, Endpoint
from deadpool.proto.vault.edge import edge_name

MEET_TIMEOUT_S = 30.0
_STDERR_BYTES = 4096
_SAID_LINES = 8
_END_S = 2.0  # for a launcher to end its processes, on both machines, when it is told to


class _Pair:
    """One pair's launcher: what it says on stdout (`heard`, a line), what went wrong (`errors`), and its end (`ended`).

    `ending`: why this agent ends it. `wanted`: its end is of interest.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], heard: Callable[[bytes], None], ended: Callable[[], None]
    ) -> None:
        self.since_s = time.time()
        self.ending, self.wanted, self.errors = "", True, bytearray()
        self._heard, self._ended = heard, ended
        self._rest = b""
        self._killed: asyncio.TimerHandle | None = None
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
        self._pidfd = os.pidfd_open(self._process.pid)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._out, self._err = self._process.stdout.fileno(), self._process.stderr.fileno()
        self._loop = asyncio.get_running_loop()
        for fd, read in ((self._out, self._read_out), (self._err, self._read_err), (self._pidfd, self._over)):
            os.set_blocking(fd, False)
            self._loop.add_reader(fd, read)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        return self._process.returncode

    def end(self) -> None:
        """Has the launcher end both processes, wherever they are; it is killed when it does not. `ended` is called then."""
        self._process.terminate()
        self._killed = self._loop.call_later(_END_S, self.kill)

    def kill(self) -> None:
        """Kills the launcher and what it has started on this machine, in whatever session. The rest notices that by itself."""
        with contextlib.suppress(psutil.NoSuchProcess):
            launcher = psutil.Process(self.pid)
            for process in [*launcher.children(recursive=True), launcher]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Waits for the launcher, which has ended or was killed."""
        if self._killed is not None:
            self._killed.cancel()
        for fd in (self._out, self._err, self._pidfd):
            self._loop.remove_reader(fd)
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
        os.close(self._pidfd)

    def _read_out(self) -> None:
        *lines, self._rest = (self._rest + _read(self._loop, self._out)).split(b"\n")
        for line in lines:
            self._heard(line)

    def _read_err(self) -> None:
        """Keeps the first lines: they say what went wrong, before others say that something did."""
        data = _read(self._loop, self._err)
        self.errors += data[: _STDERR_BYTES - len(self.errors)]

    def _over(self) -> None:
        self._read_out()
        self._read_err()
        self.close()
        self._ended()


def _read(loop: asyncio.AbstractEventLoop, fd: int) -> bytes:
    """Returns what is there to be read, without waiting."""
    data = bytearray()
    with contextlib.suppress(BlockingIOError):
        while part := os.read(fd, _STDERR_BYTES):
            data += part
        loop.remove_reader(fd)  # its other end is closed
    return bytes(data)


class MpiPairs:
    """`send`: to the supervisor. `scratch`: for what an MPI library leaves. In the loop's thread."""

    def __init__(
        self, launcher: MpiLauncher, own: Endpoint, vault: Path, job_id: str, scratch: Path, send: Callable[[EdgeChanged], None]
    ) -> None:
        self._launcher, self._own, self._vault, self._job_id, self._scratch = launcher, own, vault, job_id, scratch
        self._send = send
        self._edges = Edges(MEET_TIMEOUT_S)
        self._endpoints: dict[str, Endpoint] = {}
        self._pairs: dict[str, _Pair] = {}  # by holder
        self._all: set[_Pair] = set()  # those also that are wanted no more
        self._timer: asyncio.TimerHandle | None = None
        self._began_s = time.time()

    @property
    def pids(self) -> set[int]:
        return {pair.pid for pair in self._all}

    def wanted(self, holders: Collection[Endpoint], generation: int) -> None:
        """The node's ranks have their replicas at these from this generation on."""
        self._endpoints |= {each.node_id: each for each in holders}
        self._carry_out(self._edges.wanted(sorted(each.node_id for each in holders), generation, now_s=time.monotonic()))

    def close(self) -> None:
        """Ends all of them, waiting for nothing but that, and removes what is left of any on this machine."""
        if self._timer is not None:
            self._timer.cancel()
        for pair in self._all:
            pair.kill()
            pair.close()
        self._all.clear()
        remove_segments(since_s=self._began_s)  # also of receivers here, of other nodes' pairs

    def _carry_out(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            match decision:
                case EdgeChanged():
                    self._send(decision)
                case StartPair(holder=holder):
                    self._start(self._endpoints[holder])
                case EndPair(holder=holder, reason=reason):
                    pair = self._pairs[holder]
                    pair.ending, pair.wanted = reason, bool(reason)
                    pair.end()
                case _:
                    assert_never(decision)
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline_s = self._edges.next_deadline_s()
        loop = asyncio.get_running_loop()
        delay_s = max(0.0, deadline_s - time.monotonic()) if deadline_s is not None else None
        self._timer = loop.call_later(delay_s, self._tick) if delay_s is not None else None

    def _tick(self) -> None:
        self._carry_out(self._edges.tick(now_s=time.monotonic()))

    def _start(self, holder: Endpoint) -> None:
        def heard(line: bytes) -> None:
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a banner of the launcher's
                pids = tuple(json.loads(line)["met"])
                if pair.wanted:
                    self._carry_out(self._edges.met(holder.node_id, pids))

        try:
            pair = _Pair(self._command(holder), self._environment(holder), heard, lambda: self._ended(holder, pair))
        except OSError as error:
            reason = f"{self._launcher.program}: {error}"
            self._carry_out(self._edges.ended(holder.node_id, reason, now_s=time.monotonic()))
            return
        self._pairs[holder.node_id] = pair
        self._all.add(pair)

    def _ended(self, holder: Endpoint, pair: _Pair) -> None:
        self._all.discard(pair)
        remove_segments(since_s=pair.since_s)
        if pair.wanted:
            (self._vault / edge_name(holder.node_id)).unlink(missing_ok=True)
            said = _said(bytes(pair.errors)) or f"{Path(self._launcher.program).name} ended with {pair.status}"
            reason = f"{pair.ending}: {said}" if pair.ending else said
            self._carry_out(self._edges.ended(holder.node_id, reason, now_s=time.monotonic()))

    def _command(self, holder: Endpoint) -> list[str]:
        nodes = (self._own.node_id, holder.node_id)
        vaults = (self._vault, vault_folder(self._vault.parent, self._job_id, holder.node_id))
        slurm = in_slurm(os.environ, nodes) and self._own.host != holder.host
        hosts = nodes if slurm else (self._own.host, holder.host)
        return pair_command(self._launcher, hosts, sidecar_command(nodes, vaults), slurm=slurm, root=is_root())

    def _environment(self, holder: Endpoint) -> dict[str, str]:
        one_machine = holder.host == self._own.host
        scratch = {"TMPDIR": str(self._scratch)} if one_machine else {}  # Open MPI leaves files there
        return pair_environment(os.environ, self._launcher, one_machine=one_machine) | scratch


def _said(errors: bytes) -> str:
    lines = (printable(line).strip() for line in errors.decode(errors="replace").splitlines())
    return "; ".join([line for line in lines if line.strip("=- ")][:_SAID_LINES])
