"""Where the machines of a job that is started by hand on each of them meet.

All are given one endpoint, as for torchrun. The machine whose address it is runs the supervisor there; the others ask it until it
answers.
"""

import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from deadpool.cli.plan.plan import JOIN_TIMEOUT_S, Rendezvous
from deadpool.host.addresses import interface_address, is_local, join_host_port, outward_address, own_address, split_host_port
from deadpool.host.errors import ConfigError

_DEFAULT_PORT = 29400  # torchrun's
_STATIC_PORT = 29500  # torchrun's, for --master-addr


def endpoint_of(rendezvous: Rendezvous) -> str:
    return join_host_port(rendezvous.address, rendezvous.port)


def own_host(rendezvous: Rendezvous, interface: str | None) -> str:
    """Returns the address that this machine publishes: where it listens."""
    if interface is not None:
        return interface_address(interface)
    if rendezvous.local:
        return rendezvous.local
    return rendezvous.address if rendezvous.here else own_address(rendezvous.address)


def rendezvous_of(given: Mapping[str, Any], interface: str | None) -> Rendezvous | None:
    """Returns where the machines meet, None when nothing says so; ConfigError when it cannot be used.

    `given`: torchrun's options. Those of its static rendezvous say the same in other words.
    """
    if "rdzv-endpoint" in given:
        option, text, default = "--rdzv-endpoint", str(given["rdzv-endpoint"]), _DEFAULT_PORT
    elif "master-addr" in given or "node-rank" in given:
        port = given.get("master-port") or _STATIC_PORT
        option, text, default = "--master-addr", join_host_port(str(given.get("master-addr", "127.0.0.1")), port), port
    else:
        return None
    host, port = split_host_port(text, default_port=default, option=option)
    addresses = resolve(option, host)
    here, address = _which(addresses, own_addresses())
    if here and is_local(address) and not (host == "localhost" or is_local(host)):  # its own name leads nowhere else
        address = outward_address()
    local = resolve("--local-addr", str(given["local-addr"]))[0] if "local-addr" in given else ""
    if here and (interface is not None or local):
        address = interface_address(interface) if interface is not None else local
    return Rendezvous(
        given=text,
        address=address,
        port=port,
        here=here,
        index=given.get("node-rank", 0 if here else -1),
        local=local,
        join_timeout_s=_join_timeout_s(str(given.get("rdzv-conf", ""))),
    )


def resolve(option: str, host: str) -> list[str]:
    """Returns the addresses of that name, IPv4 ones first; ConfigError when it has none here."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"{option}: {host} does not resolve on this machine ({error.strerror})") from error
    addresses = dict.fromkeys(str(each[4][0]) for each in found)
    return sorted(addresses, key=lambda address: ":" in address)


def own_addresses() -> set[str]:
    return {each.address.partition("%")[0] for found in psutil.net_if_addrs().values() for each in found}


def _which(addresses: Sequence[str], own: set[str]) -> tuple[bool, str]:
    """Returns (whether one of the addresses is ours, the one to use)."""
    ours = [address for address in addresses if address in own or is_local(address)]
    return (True, ours[0]) if ours else (False, addresses[0])


def _join_timeout_s(conf: str) -> float:
    """Returns torchrun's join_timeout of `--rdzv-conf key=value,...`."""
    settings = dict(each.strip().partition("=")[::2] for each in conf.split(",") if "=" in each)
    try:
        return float(settings.get("join_timeout", JOIN_TIMEOUT_S))
    except ValueError as error:
        raise ConfigError(f"--rdzv-conf {conf}: join_timeout is a number of seconds") from error


def node_name() -> str:
    """Returns a name for this node that no other one has: a machine may have several."""
    return f"{socket.gethostname().partition('.')[0][:24]}-{os.getpid()}-{secrets.token_hex(2)}"
