"""Addresses: HOST:PORT as text, and which address of this machine others reach.

Numbers only: a machine's name need not resolve on the others, or to this one.
"""

import contextlib
import ipaddress
import socket

import psutil

from deadpool.host.errors import ConfigError

_NOBODY = "192.0.2.1"  # set aside for examples: only a default route leads there
_PORT = 9  # nothing is sent there: only the route is asked for


def split_host_port(text: str, *, default_port: int = 0, option: str = "") -> tuple[str, int]:
    """Returns (host without brackets, port); ConfigError when the text is neither. `option`: where the text was given."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):  # no port, or an IPv6 address as it is
        host, port = text, str(default_port)
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"{option} {text}: write HOST:PORT, with a port that all machines know".strip())
    return host.strip("[]"), int(port)


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def own_address(towards: str) -> str:
    """Returns the address with which this machine speaks to that one (a name or an address); ConfigError when there is no way."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(towards, _PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as route:
            route.connect(address)
            return str(route.getsockname()[0])
    except OSError as error:
        raise ConfigError(f"{towards}: cannot be reached from here ({error.strerror}); name an --interface or address") from error


def outward_address() -> str:
    """Returns the address with which this machine speaks to the world; its loopback where there is no way out."""
    with contextlib.suppress(ConfigError):
        return own_address(_NOBODY)
    addresses = [each.address for found in psutil.net_if_addrs().values() for each in found if each.family == socket.AF_INET]
    return next((address for address in addresses if not is_local(address)), "127.0.0.1")


def interface_address(interface: str) -> str:
    """Returns the interface's first IPv4 address, else its first IPv6 one; ConfigError names the interfaces that there are."""
    found = psutil.net_if_addrs()
    for family in (socket.AF_INET, socket.AF_INET6):
        for each in found.get(interface, ()):
            if each.family == family and not each.address.startswith("fe80"):
                return each.address
    raise ConfigError(f"--interface {interface}: no such interface with an address here; there are: {', '.join(sorted(found))}")


def interface_of(address: str) -> str:
    """Returns the name of the interface that has this address, "" when none has."""
    for name, found in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in found):
            return name
    return ""


def is_local(host: str) -> bool:
    """Returns whether only this machine can reach that address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
