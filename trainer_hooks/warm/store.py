"""The store process: serves the rendezvous store of each generation that the agent asks for.

It keeps the newest store and the one before (ranks of an old generation may still be leaving it), so no key of one generation is
ever seen in another.
"""

import os
import socket
from collections.abc import Callable
from typing import Any

from deadpool.proto import warm_wire
from deadpool.proto.warm_wire import Open, Opened

_STORES_KEPT = 2


def serve_stores(control: socket.socket) -> None:
    """Answers Open with Opened until the agent closes its end."""
    from torch import distributed  # a script without torch needs it here only

    stores: dict[int, Any] = {}
    while (received := warm_wire.receive(control)) is not None:
        order, fds = received
        assert isinstance(order, Open), order
        error = ""
        if order.generation in stores:
            os.close(fds[0])
        else:
            try:
                stores[order.generation] = _open(distributed.TCPStore, *fds)  # type: ignore[attr-defined]
            except (OSError, RuntimeError) as failure:
                error = str(failure)
        warm_wire.send(control, Opened(generation=order.generation, error=error))
        for generation in sorted(stores)[:-_STORES_KEPT]:
            del stores[generation]


def _open(store: Callable[..., Any], listener: int) -> Any:
    """Returns a store that serves that listener (by itself it would listen on all addresses); it closes it at its end."""
    with socket.socket(fileno=os.dup(listener)) as known:
        host, port = known.getsockname()[:2]
    return store(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener)
