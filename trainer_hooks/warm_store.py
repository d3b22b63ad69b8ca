"""The store process: serves the rendezvous store of each generation that the agent asks for.

It keeps the newest store and the one before (ranks of an old generation may still be leaving it), so no key of one generation is
ever seen in another.
"""

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
        order, _ = received
        assert isinstance(order, Open), order
        error = ""
        if order.generation not in stores:
            try:
                stores[order.generation] = _open(distributed.TCPStore, order.host)  # type: ignore[attr-defined]
            except (OSError, RuntimeError) as failure:
                error = f"no rendezvous store on {order.host}: {failure}"
        port = stores[order.generation].port if not error else 0
        warm_wire.send(control, Opened(generation=order.generation, port=port, error=error))
        for generation in sorted(stores)[:-_STORES_KEPT]:
            del stores[generation]


def _open(store: Callable[..., Any], host: str) -> Any:
    """Returns a store on a free port of that one address (by itself it would listen on all)."""
    family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    listener = socket.create_server((host, 0), family=family)
    port = listener.getsockname()[1]
    return store(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
