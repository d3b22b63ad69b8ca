"""Jobs over several machines that are started by hand: this machine's node, beside the supervisor or alone.

The launcher on the machine that the endpoint names is a job's launcher like any other (launcher/job.py), with one node of
its own; nodes come and go elsewhere, and the supervisor's events say so. On every other machine the launcher is
a node (wrapper.py).
"""

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from deadpool.agent.edges.launcher import check_transport
from deadpool.cli import client
from deadpool.cli.launcher.children import Children, module_command
from deadpool.cli.nodes.job_token import TOKEN_VARIABLE, secret_path, shared_secret, token_of
from deadpool.cli.nodes.live_nodes import LiveNodes
from deadpool.cli.nodes.rendezvous import endpoint_of, node_name, own_host
from deadpool.cli.nodes.wrapper import live
from deadpool.cli.plan.plan import LaunchPlan, Rendezvous
from deadpool.host.errors import ConfigError, DeadpoolError
from deadpool.host.ports import why_taken
from deadpool.host.vault_folders import VAULT_ROOT, remove_vault, vault_folder
from deadpool.proto.config import JobConfig
from deadpool.proto.doors import open_channel
from deadpool.proto.grpc_options import CHANNEL_OPTIONS
from deadpool.proto.messages.status import JobStatus
from deadpool.proto.secret import read_private, tls_token
from deadpool.proto.terms import journal_folder, newest_endpoint, read_outcome

_ASK_S = 3.0
_POLL_S = 0.2
_SAY_S = 5.0
LINGER_S = 5.0


class OwnNode:
    """The one node of this machine, beside the supervisor. `folder`: the job's. `host`: where this machine is reached."""

    linger_s = LINGER_S

    def __init__(
        self,
        config: JobConfig,
        folder: Path,
        children: Children,
        rendezvous: Rendezvous,
        *,
        node_id: str,
        host: str,
        say: Callable[[str], None],
    ) -> None:
        self._config, self._folder, self._children, self._say = config, folder, children, say
        self._rendezvous, self._node_id, self._host = rendezvous, node_id, host
        self._live = LiveNodes()

    @property
    def host(self) -> str:
        return self._host

    @property
    def shares_folder(self) -> bool:
        return bool(self._config.journal)

    def open(self) -> None:
        check_transport(self._config)
        check_free(self._host, self._rendezvous)
        self._say(f"the job's machines meet at {self._rendezvous.given} ({self._host}); this one is {self._node_id}")

    def start(self, for_agents: Sequence[str]) -> None:
        index = str(self._rendezvous.index)
        own = ["--job-dir", str(self._folder), "--with-parent", "--node-id", self._node_id, "--hint", index]
        self._children.start(self._node_id, [*module_command("deadpool.agent.main"), *own, "--host", self._host, *for_agents])

    def fds(self) -> list[int]:
        return []

    def on_readable(self) -> None:
        pass

    def any_left(self) -> bool:
        return bool(self._live.now) or self._children.pid(self._node_id) is not None

    def on_child_ended(self, name: str, exit_code: int) -> None:
        pass

    def on_remains_gone(self) -> None:
        if self._children.pid(self._node_id) is None:
            self._remove_vault()

    def on_event(self, event: dict[str, Any]) -> None:
        self._live.note(event)

    def poll(self) -> None:
        pass

    def ask_to_stop(self) -> None:
        try:
            with client.connected(journal_folder(self._config)) as job:
                job.stop("the launcher was told to stop")
        except DeadpoolError:
            self._children.signal(self._node_id, signal.SIGTERM)

    def prepare_end(self) -> None:
        pass

    def close(self) -> None:
        self._remove_vault()

    def _remove_vault(self) -> None:
        remove_vault(vault_folder(VAULT_ROOT, self._config.job_id, self._node_id))


def own_node(
    config: JobConfig,
    folder: Path,
    children: Children,
    rendezvous: Rendezvous,
    *,
    interface: str | None,
    say: Callable[[str], None],
) -> OwnNode:
    """Returns this machine's node of a job whose supervisor is here."""
    host = own_host(rendezvous, interface)
    return OwnNode(config, folder, children, rendezvous, node_id=node_name(), host=host, say=say)


def token_for(config: JobConfig) -> str:
    """Returns the job's token, which all its machines know."""
    token = token_of(shared_secret(), config.job_id)
    return tls_token(token) if config.tls else token


def belongs_elsewhere(config: JobConfig, rendezvous: Rendezvous, token: str) -> bool:
    """Returns whether this machine's node joins a job whose supervisor is started elsewhere, or here by another launcher.

    The latter for a second node of this machine, or when it has come back.
    """
    return not rendezvous.here or running(config, rendezvous, token) is not None


def join(plan: LaunchPlan, rendezvous: Rendezvous, token: str, say: Callable[[str], None]) -> int:
    """Runs this machine's node in the job that is started elsewhere; returns the job's exit code, or how the node ended."""
    config, node_id, host = plan.config, node_name(), own_host(rendezvous, plan.interface)
    job, token = find(config, rendezvous, token, say)
    say(f"job {job.job_id} at {rendezvous.given}: this machine is {node_id} at {host}")
    options = ["--ends-as-job", "--node-id", node_id, "--hint", str(rendezvous.index), "--host", host]
    if config.journal:
        shared = str(journal_folder(config))
        for_supervisor = json.dumps(["--port", str(rendezvous.port), *plan.for_supervisor])  # should this node start one
        options += ["--shared", shared, "--journal", shared, "--for-supervisor", for_supervisor]
    else:
        options += ["--job", job.job_id, "--supervisor", endpoint_of(rendezvous)]
        os.environ[TOKEN_VARIABLE] = token  # for the agent, which takes it out of its ranks' sight
    exit_code = live(job.job_id, node_id, options)
    say(f"job {job.job_id}: {'done' if exit_code == 0 else f'ended with exit code {exit_code}'} on this machine")
    return exit_code


def find(config: JobConfig, rendezvous: Rendezvous, token: str, say: Callable[[str], None]) -> tuple[JobStatus, str]:
    """Waits for a supervisor; returns what it says of the job, and its token. ConfigError when none comes, or another's."""
    began_s = time.monotonic()
    said = False
    while True:
        found = running(config, rendezvous, token)
        if found is not None:
            return found
        waited_s = time.monotonic() - began_s
        if waited_s > rendezvous.join_timeout_s:
            raise ConfigError(
                f"{rendezvous.given}: no supervisor answers after {waited_s:.0f} s; is the same command running on that machine, "
                "and can this one reach it? (--rdzv-conf join_timeout=SECONDS waits longer)"
            )
        if waited_s > _SAY_S and not said:
            said = True
            say(f"waiting for the supervisor at {rendezvous.given}")
        time.sleep(_POLL_S)


def running(config: JobConfig, rendezvous: Rendezvous, token: str) -> tuple[JobStatus, str] | None:
    """Returns (status, token) of the job that runs there, None when no supervisor answers; ConfigError when it is another's."""
    if not config.journal:
        status = ask(endpoint_of(rendezvous), token, rendezvous.given)
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
    with open_channel(endpoint, token, CHANNEL_OPTIONS) as channel:
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


def check_free(host: str, rendezvous: Rendezvous) -> None:
    """Raises ConfigError when the supervisor could not listen there."""
    if reason := why_taken(host, rendezvous.port):
        raise ConfigError(f"{rendezvous.given}: cannot listen there ({reason}): choose another port")
