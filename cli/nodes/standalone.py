"""A job's nodes when all of them are on this machine: an agent for each, started by the launcher.

What a dead agent leaves, falls to the launcher: its processes are killed, and its vault is removed.
"""

import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from deadpool.agent.edges.launcher import check_transport
from deadpool.cli.launcher.children import SUPERVISOR, Children, module_command, signal_hosted
from deadpool.cli.nodes.netns import Networks, open_networks
from deadpool.cli.nodes.warm_nodes import WarmNodes, open_warm_nodes
from deadpool.host.vault_folders import VAULT_ROOT, remove_vault, vault_folder
from deadpool.proto.config import JobConfig


class StandaloneNodes:
    """`folder`: the job's. The nodes are node0, node1...; an agent is a child of that name."""

    shares_folder = False
    linger_s = 0.0

    def __init__(self, config: JobConfig, folder: Path, children: Children) -> None:
        self._config = config
        self._folder = folder
        self._children = children
        self._node_ids = [f"node{index}" for index in range(config.nnodes + config.spares)]
        self._networks: Networks | None = None
        self._warm: WarmNodes | None = None  # while agents are being forked from it
        self._for_agents: list[str] = []
        self._frozen: set[str] = set()
        self._to_boot: set[str] = set()
        self._dead: list[str] = []  # their vaults are removed once nothing of them runs

    @property
    def host(self) -> str:
        return "" if self._networks is None else self._networks.host

    def open(self) -> None:
        check_transport(self._config)
        if self._config.netns:
            self._networks = open_networks(self._node_ids)

    def start(self, for_agents: Sequence[str]) -> None:
        self._for_agents = list(for_agents)
        self._warm = open_warm_nodes(self._config, len(self._node_ids))
        if self._warm is not None:
            self._children.tolerate(self._warm.pid)
            self._children.expecting = True
        for node_id in self._node_ids:
            self._start_node(node_id)

    def fds(self) -> list[int]:
        return [] if self._warm is None else [self._warm.fd]

    def on_readable(self) -> None:
        """Agents that were forked are children like others; those that could not be are started in the ordinary way."""
        warm = self._warm
        if warm is None:
            return
        pids, failed = warm.started()
        for node_id, pid in pids.items():
            self._children.adopt(node_id, pid)
        if not warm.waiting:
            self._close_warm()
        for node_id in failed:
            self._start_node(node_id)

    def any_left(self) -> bool:
        return self._warm is not None or any(name != SUPERVISOR for name in self._children.started.values())

    def on_child_ended(self, name: str, exit_code: int) -> None:
        self._dead.append(name)

    def on_remains_gone(self) -> None:
        self._remove_vaults(self._dead)
        self._dead.clear()

    def on_event(self, event: dict[str, Any]) -> None:
        if event.get("event") == "injection":
            self._inject(str(event.get("kind")), f"node{event.get('target')}")

    def poll(self) -> None:
        for node_id in [each for each in self._to_boot if each not in self._dead and self._children.pid(each) is None]:
            self._to_boot.discard(node_id)  # nothing is left of its life before
            self._start_node(node_id)

    def ask_to_stop(self) -> None:
        """Where a node hosts the supervisor and it does not live just now, the nodes are told."""
        if not signal_hosted(self._folder):
            for node_id in self._node_ids:
                self._children.signal(node_id, signal.SIGTERM)

    def prepare_end(self) -> None:
        self._close_warm()
        for node_id in self._frozen:  # it can be told to end only awake
            self._children.thaw(node_id)

    def close(self) -> None:
        self._remove_vaults(self._node_ids)
        if self._networks is not None:
            self._networks.close()

    def _close_warm(self) -> None:
        if self._warm is not None:
            self._warm.close()
            self._warm, self._children.expecting = None, False

    def _remove_vaults(self, node_ids: list[str]) -> None:
        for node_id in node_ids:
            remove_vault(vault_folder(VAULT_ROOT, self._config.job_id, node_id))

    def _start_node(self, node_id: str) -> None:
        own = ["--job-dir", str(self._folder), "--with-parent", "--node-id", node_id, "--hint", node_id.removeprefix("node")]
        own += self._for_agents
        networks = self._networks
        if networks is not None:
            own += ["--host", networks.address(node_id)]
        command = [*module_command("deadpool.agent.main"), *own]
        if self._warm is not None:
            self._warm.start(node_id, command, None if networks is None else networks.fd(node_id))
        elif networks is None:
            self._children.start(node_id, command)
        else:
            self._children.start(node_id, command, partial(networks.enter, node_id))

    def _inject(self, kind: str, node_id: str) -> None:
        """Carries out what only the machine under the nodes can do to them."""
        if kind == "freeze-node":  # its agent has done that
            self._frozen.add(node_id)
        elif kind == "thaw-node":
            self._frozen.discard(node_id)
            self._children.thaw(node_id)
        elif kind == "boot-node":
            self._to_boot.add(node_id)
        elif kind == "partition-node" and self._networks is not None:
            self._networks.cut(node_id)
        elif kind == "heal-node" and self._networks is not None:
            self._networks.heal(node_id)
