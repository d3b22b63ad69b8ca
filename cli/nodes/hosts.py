"""A job's nodes when the launcher starts them itself on other machines, over ssh (--hosts).

On each host ssh runs this module, which reads from its stdin, never from the command line, what it is to do: token, environment,
folder, the agent's options. That stdin stays open as long as the launcher lives; its end is the node's.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from deadpool.cli.launcher.children import SUPERVISOR, Children, module_command
from deadpool.cli.nodes.by_hand import LINGER_S
from deadpool.cli.nodes.job_token import TOKEN_VARIABLE
from deadpool.cli.nodes.live_nodes import LiveNodes
from deadpool.cli.nodes.ssh import SSH_FAILED, output_of, ssh_command
from deadpool.cli.nodes.wrapper import live
from deadpool.host.addresses import interface_address, join_host_port, own_address
from deadpool.host.errors import ConfigError, DeadpoolError
from deadpool.proto.config import JobConfig

_CHECK_S = 60.0
_NOT_PASSED_ON = (
    "DISPLAY",
    "HOME",
    "HOSTNAME",
    "LOGNAME",
    "MAIL",
    "OLDPWD",
    "PWD",
    "SHELL",
    "SHLVL",
    "TERM",
    "TMPDIR",
    "USER",
    "_",
)
_NOT_PASSED_ON_LIKE = ("DBUS_", "SSH_", "XDG_", "DEADPOOL_")


class HostNodes:
    """A child, ssh, for each host; the nodes have the hosts' names. `port`: the supervisor's, on this machine."""

    shares_folder = False
    linger_s = LINGER_S

    def __init__(
        self,
        config: JobConfig,
        children: Children,
        hosts: Sequence[str],
        token: str,
        *,
        host: str,
        port: int,
        interface: str | None,
        say: Callable[[str], None],
    ) -> None:
        self._config, self._children, self._token, self._say = config, children, token, say
        self._hosts = {node_name_of(host): host for host in hosts}
        self._host, self._port, self._interface = host, port, interface
        self._live = LiveNodes()
        self._stdins: list[int] = []

    @property
    def host(self) -> str:
        return self._host

    def open(self) -> None:
        """Every host must answer, and have this Python with us in it; ConfigError names the first that does not."""
        command = [*module_command("deadpool.cli.nodes.hosts"), "--check"]
        with ThreadPoolExecutor(max_workers=len(self._hosts)) as pool:
            for asked in [pool.submit(output_of, host, command, timeout_s=_CHECK_S) for host in self._hosts.values()]:
                try:
                    asked.result()
                except DeadpoolError as error:
                    raise ConfigError(f"--hosts: {error}") from error

    def start(self, for_agents: Sequence[str]) -> None:
        endpoint = join_host_port(self._host, self._port)
        for index, (node_id, host) in enumerate(self._hosts.items()):
            options = ["--job", self._config.job_id, "--supervisor", endpoint, "--node-id", node_id, "--hint", str(index)]
            options += ["--interface", self._interface] if self._interface else []
            wish = {
                "token": self._token,
                "environment": passed_on(os.environ),
                "folder": os.getcwd(),
                "job_id": self._config.job_id,
                "node_id": node_id,
                "options": [*options, *for_agents],
            }
            read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
            self._stdins.append(write_fd)
            command = ssh_command(host, module_command("deadpool.cli.nodes.hosts"))
            self._children.start(node_id, command, partial(_read_from, read_fd))
            os.close(read_fd)
            threading.Thread(target=_write, args=(write_fd, json.dumps(wish)), daemon=True).start()  # ssh may not read for long

    def fds(self) -> list[int]:
        return []

    def on_readable(self) -> None:
        pass

    def any_left(self) -> bool:
        return bool(self._live.now) or any(name != SUPERVISOR for name in self._children.started.values())

    def on_child_ended(self, name: str, exit_code: int) -> None:
        if exit_code == SSH_FAILED:
            if name not in self._live.ever:
                raise ConfigError(f"--hosts: {self._hosts[name]} cannot be reached by ssh any more")
            self._say(f"the connection to {self._hosts[name]} has ended")

    def on_remains_gone(self) -> None:
        pass

    def on_event(self, event: dict[str, Any]) -> None:
        self._live.note(event)

    def poll(self) -> None:
        pass

    def ask_to_stop(self) -> None:
        self._let_go()

    def prepare_end(self) -> None:
        self._let_go()

    def close(self) -> None:
        self._let_go()

    def _let_go(self) -> None:
        """The end of their stdin ends the nodes."""
        while self._stdins:
            os.close(self._stdins.pop())


def launcher_address(hosts: Sequence[str], interface: str | None) -> str:
    """Returns this machine's address as the hosts see it."""
    return interface_address(interface) if interface else own_address(hosts[0].rpartition("@")[2])


def node_name_of(host: str) -> str:
    return host.rpartition("@")[2].replace(":", "-").replace("%", "-").strip("[]")


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that the ranks on the hosts get: all but those that belong to a machine or a login."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _NOT_PASSED_ON and not name.startswith(_NOT_PASSED_ON_LIKE)
    }


def _read_from(fd: int) -> None:
    os.dup2(fd, 0)


def _write(fd: int, text: str) -> None:
    try:
        with open(os.dup(fd), "w") as pipe:
            pipe.write(f"{text}\n")
    except OSError:
        pass  # ssh has ended, or the job has; both are noticed elsewhere


# ---------------------------------------------------------------- on the host


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        return
    line = sys.stdin.buffer.readline()
    if not line:
        sys.exit("deadpool: the launcher is gone")
    wish = json.loads(line)
    os.environ |= wish["environment"]
    os.environ[TOKEN_VARIABLE] = wish["token"]
    try:
        os.chdir(wish["folder"])
    except OSError as error:
        sys.exit(
            f"deadpool[{wish['node_id']}]: {wish['folder']}: {error.strerror}; the folder must be there as it is at the launcher"
        )
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    sys.exit(live(wish["job_id"], wish["node_id"], wish["options"]))


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
