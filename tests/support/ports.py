"""Ports for servers that start later: free ones that the kernel gives to no connection meanwhile."""

import random

from deadpool.host.ports import why_taken

_BELOW_OUTGOING = range(20_000, 30_000)  # connections get theirs from 32768 on


def port_for_later() -> int:
    return next(port for port in random.sample(_BELOW_OUTGOING, len(_BELOW_OUTGOING)) if not why_taken("127.0.0.1", port))
