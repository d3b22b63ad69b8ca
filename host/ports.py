"""Ports of this machine: is one free, which one is, and listening on one address only."""

import socket


def why_taken(host: str, port: int) -> str:
    """Returns why nobody could listen there now, "" when one can. `host`: an address of this machine, "" for all of them."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""


def free_port(host: str) -> int:
    """Returns a port of that address which is free now; somebody else may take it before it is listened on."""
    with listen_at(host, backlog=1) as probe:
        return int(probe.getsockname()[1])


def listen_at(host: str, *, backlog: int) -> socket.socket:
    """Returns a socket that listens on a free port of that address (or name), and on no other address."""
    return socket.create_server((host, 0), family=family_of(host), backlog=backlog)


def family_of(host: str) -> socket.AddressFamily:
    """Returns the family of that address, or of the first address of that name."""
    return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
