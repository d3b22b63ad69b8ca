"""Jobs over several machines that are started by hand: this machine's node, beside the supervisor or alone.

The launcher on the machine that the endpoint names is a job's launcher like any other (job.py), with one node of its own; nodes
come and go elsewhere, and the supervisor's events tell of them. On every other machine the launcher is a node (node.py).
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from deadpool.cli.commands import client
from deadpool.cli.launcher.children import Children, module_command, vault_folder
from deadpool.cli.launcher.job import LaunchedJob
from deadpool.cli.launcher.job_dirs import job_folder, log_folder
from deadpool.cli.nodes.rendezvous import TOKEN_VARIABLE, Meeting, node_name, secret_path, shared_secret, token_of
from deadpool.cli.nodes.seen import NodesSeen
from deadpool.cli.nodes.wrapper import live
from deadpool.host.errors import ConfigError, DeadpoolError
from deadpool.host.ports import why_taken
from deadpool.proto.config import JobConfig
from deadpool.proto.messages.status import JobStatus
from deadpool.proto.secret import read_private
from deadpool.proto.terms import journal_folder, newest_endpoint, read_outcome

_ASK_S = 3.0
_POLL_S = 0.2
_SAY_S = 5.0
LINGER_S = 5.0


class HereNodes:
    """The one node of this machine, beside the supervisor. `folder`: the job's. `host`: where this machine is reached."""

    linger_s = LINGER_S

    def __init__(self, config: JobConfig, folder: Path, children: Children, *, node_id: str, index: int, host: str) -> None:
        self._config, self._folder, self._children = config, folder, children
        self._node_id, self._index, self._host = node_id, index, host
        self._seen = NodesSeen()

    @property
    def host(self) -> str:
        return self._host

    @property
    def apart(self) -> bool:
        return bool(self._config.journal)

    def open(self) -> None:
        pass

    def start(self, for_agents: Sequence[str]) -> None:
        own = ["--job-dir", str(self._folder), "--with-parent", "--node-id", self._node_id, "--hint", str(self._index)]
        self._children.start(self._node_id, [*module_command("deadpool.agent.main"), *own, "--host", self._host, *for_agents])

    def fds(self) -> list[int]:
        return []

    def readable(self) -> None:
        pass

    def left(self) -> bool:
        return bool(self._seen.live) or self._children.pid(self._node_id) is not None

    def ended(self, name: str, exit_code: int) -> None:
        pass

    def buried(self) -> None:
        if self._children.pid(self._node_id) is None:
            self._remove_vault()

    def heard(self, event: dict[str, Any]) -> None:
        self._seen.heard(event)

    def turn(self) -> None:
        pass

    def stop(self) -> None:
        try:
            with client.connected(journal_folder(self._config)) as job:
                job.stop("the launcher was told to stop")
        except DeadpoolError:
            self._children.signal(self._node_id, signal.SIGTERM)

    def wake(self) -> None:
        pass

    def close(self) -> None:
        self._remove_vault()

    def _remove_vault(self) -> None:
        folder = vault_folder(self._config.job_id, self._node_id)
        if folder.exists():
            shutil.rmtree(folder)


def join(
    config: JobConfig,
    meeting: Meeting,
    token: str,
    *,
    node_id: str,
    interface: str | None,
    own: Sequence[str],
    say: Callable[[str], None],
) -> int:
    """Runs this machine's node in the job that is started elsewhere; returns the job's exit code, or how the node ended.

    `own`: further arguments for a supervisor, should this node start one (--journal).
    """
    host = meeting.own_host(interface)
    job, token = find(config, meeting, token, say)
    say(f"job {job.job_id} at {meeting.given}: this machine is {node_id} at {host}")
    options = ["--ends-as-job", "--node-id", node_id, "--hint", str(meeting.index), "--host", host]
    if config.journal:
        shared = str(journal_folder(config))
        options += ["--shared", shared, "--journal", shared, "--for-supervisor", json.dumps(list(own))]
    else:
        options += ["--job", job.job_id, "--supervisor", meeting.endpoint]
        os.environ[TOKEN_VARIABLE] = token  # for the agent, which takes it out of its ranks' sight
    exit_code = live(job.job_id, node_id, options)
    say(f"job {job.job_id}: {'done' if exit_code == 0 else f'ended with exit code {exit_code}'} on this machine")
    return exit_code


def find(config: JobConfig, meeting: Meeting, token: str, say: Callable[[str], None]) -> tuple[JobStatus, str]:
    """Waits for a supervisor; returns what it says of the job, and its token. ConfigError when none comes, or another's."""
    began_s = time.monotonic()
    said = False
    while True:
        found = running(config, meeting, token)
        if found is not None:
            return found
        waited_s = time.monotonic() - began_s
        if waited_s > meeting.join_timeout_s:
            raise ConfigError(
                f"{meeting.given}: no supervisor answers after {waited_s:.0f} s; is the same command running on that machine, "
                "and can this one reach it? (--rdzv-conf join_timeout=SECONDS waits longer)"
            )
        if waited_s > _SAY_S and not said:
            said = True
            say(f"waiting for the supervisor at {meeting.given}")
        time.sleep(_POLL_S)


def running(config: JobConfig, meeting: Meeting, token: str) -> tuple[JobStatus, str] | None:
    """Returns (status, token) of the job that runs there, None when no supervisor answers; ConfigError when it is another's."""
    if not config.journal:
        status = ask(meeting.endpoint, token, meeting.given)
        return None if status is None else (status, token)
    folder = journal_folder(config)
    try:
        endpoint, token = newest_endpoint(folder)[1], read_private(folder / "token")
    except FileNotFoundError:
        return None
    if not endpoint or read_outcome(folder) is not None:
        return None
    try:
        status = ask(endpoint, token, endpoint)
    except ConfigError:  # of a life before: whoever starts the job writes the folder anew
        return None
    return None if status is None else (status, token)


def ask(endpoint: str, token: str, name: str) -> JobStatus | None:
    """Returns what a supervisor says there, None when none answers; ConfigError when what listens there is not ours."""
    with grpc.insecure_channel(endpoint, options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            return client.Client(channel, token).status(timeout_s=_ASK_S)
        except grpc.RpcError as error:
            code = error.code() if isinstance(error, grpc.Call) else None
            if code is grpc.StatusCode.UNAUTHENTICATED:
                raise ConfigError(
                    f"{name}: the supervisor there has another token: give all machines the same ${TOKEN_VARIABLE} or "
                    f"{secret_path()}, and the same --rdzv-id; or choose another port, if it is another job's"
                ) from error
            if code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
                raise ConfigError(f"{name}: what listens there is no supervisor ({code})") from error
    return None


def run(config: JobConfig, meeting: Meeting, own: Sequence[str], *, interface: str | None, say: Callable[[str], None]) -> int:
    """Runs this machine's part of the job; returns the job's exit code. `own`: further arguments for its supervisor."""
    token = token_of(shared_secret(), config.job_id)
    node_id, own = node_name(), ["--port", str(meeting.port), *own]
    if not meeting.here or running(config, meeting, token) is not None:  # a second node of this machine, or it has come back
        return join(config, meeting, token, node_id=node_id, interface=interface, own=own, say=say)
    host = meeting.own_host(interface)
    check_free(host, meeting)
    children = Children()
    with log_folder(Path(config.log_dir)), job_folder(config, token) as folder:
        say(f"job {config.job_id}: {config.nnodes} nodes meet at {meeting.given} ({host}); this machine is {node_id}")
        nodes = HereNodes(config, folder, children, node_id=node_id, index=meeting.index, host=host)
        exit_code = LaunchedJob(config, folder, say, own, nodes, children).run()
    say(f"job {config.job_id}: {'done' if exit_code == 0 else f'ended with exit code {exit_code}'}")
    return exit_code


def check_free(host: str, meeting: Meeting) -> None:
    """Raises ConfigError when the supervisor could not listen there."""
    if reason := why_taken(host, meeting.port):
        raise ConfigError(f"{meeting.given}: cannot listen there ({reason}): choose another port")
