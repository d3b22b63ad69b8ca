"""A network of its own for each simulated node: namespaces, with cables (veth) to a bridge on this machine that can be cut.

Namespaces have no name: they live as long as a process in them or our descriptor of them. So nothing is left when the launcher is
killed, except the bridge; the next `open` removes bridges whose launcher is gone.
"""

import ctypes
import ipaddress
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence

from deadpool.host.errors import ConfigError, DeadpoolError

_CLONE_NEWNET = 0x40000000
_BRIDGE = "deadp"  # and the launcher's pid: at most 15 characters
_NETWORKS = ipaddress.ip_network("10.213.0.0/16").subnets(new_prefix=24)
_libc = ctypes.CDLL(None, use_errno=True)


class Networks:
    """Made by `open_networks`. `host`: this machine's address on the bridge, for the supervisor."""

    def __init__(self, bridge: str, host: str, nodes: dict[str, tuple[str, str, int]]) -> None:
        self.host = host
        self._bridge = bridge
        self._nodes = nodes  # node -> (address, our end of the cable, descriptor of its namespace)

    def address(self, node_id: str) -> str:
        return self._nodes[node_id][0]

    def fd(self, node_id: str) -> int:
        """Returns the descriptor of the node's namespace."""
        return self._nodes[node_id][2]

    def enter(self, node_id: str) -> None:
        """Moves the calling thread into the node's network; for a child, between fork and exec."""
        enter(self._nodes[node_id][2])

    def cut(self, node_id: str) -> None:
        _ip("link", "set", self._nodes[node_id][1], "down")

    def heal(self, node_id: str) -> None:
        _ip("link", "set", self._nodes[node_id][1], "up")

    def close(self) -> None:
        for _, cable, fd in self._nodes.values():
            subprocess.run(["ip", "link", "del", cable], check=False, stderr=subprocess.DEVNULL)
            os.close(fd)
        self._nodes.clear()
        subprocess.run(["ip", "link", "del", self._bridge], check=False, stderr=subprocess.DEVNULL)


def check_possible() -> None:
    """Raises ConfigError where network namespaces cannot be made."""
    if os.geteuid() != 0:
        raise ConfigError("--netns: making network namespaces needs root; without --netns all nodes share this machine's network")
    if shutil.which("ip") is None:
        raise ConfigError("--netns: the program `ip` (iproute2) is not here")


def open_networks(node_ids: Sequence[str]) -> Networks:
    """Returns the network of these nodes, all cables plugged in."""
    check_possible()
    _remove_leftovers()
    used = {address["local"] for link in json.loads(_ip("-j", "-4", "addr")) for address in link["addr_info"]}
    free = (net for net in _NETWORKS if not any(ipaddress.ip_address(each) in net for each in used))
    host, *addresses = (str(address) for _, address in zip(range(len(node_ids) + 1), next(free).hosts(), strict=False))
    bridge = f"{_BRIDGE}{os.getpid()}"
    _ip("link", "add", bridge, "type", "bridge")
    networks = Networks(bridge, host, {})
    try:
        _ip("addr", "add", f"{host}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        for index, (node_id, address) in enumerate(zip(node_ids, addresses, strict=True)):
            cable = f"dp{os.getpid()}n{index}"
            networks._nodes[node_id] = address, cable, _namespace(cable, f"{address}/24")
            _ip("link", "set", cable, "master", bridge, "up")
    except BaseException:
        networks.close()
        raise
    return networks


def enter(fd: int) -> None:
    if _libc.setns(fd, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _namespace(cable: str, address: str) -> int:
    """Returns a descriptor of a new network namespace: loopback, and eth0 whose other end is `cable` in ours."""
    fds: list[int] = []
    failures: list[Exception] = []

    def make() -> None:  # a thread has a network of its own once it has asked for it
        try:
            if _libc.unshare(_CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNET)")
            fds.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
            _ip("link", "set", "lo", "up")
            _ip("link", "add", "eth0", "type", "veth", "peer", "name", cable, "netns", str(os.getpid()))
            _ip("addr", "add", address, "dev", "eth0")
            _ip("link", "set", "eth0", "up")
        except (OSError, DeadpoolError) as error:
            failures.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if failures:
        raise ConfigError(f"--netns: no network namespace can be made here: {failures[0]}") from failures[0]
    return fds[0]


def _remove_leftovers() -> None:
    for link in json.loads(_ip("-j", "link", "show", "type", "bridge")):
        owner = str(link.get("ifname", "")).removeprefix(_BRIDGE)
        if owner.isdecimal() and not os.path.exists(f"/proc/{owner}"):
            _ip("link", "del", link["ifname"])


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DeadpoolError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
