"""Serves metrics to Prometheus over HTTP, in threads of its own: a scrape must not keep the loop from anything."""

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import ProcessCollector, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from deadpool.host.ports import family_of

PORTS_TRIED = 64
_HIGHEST_PORT = 65535
_POLL_S = 0.1  # how soon the server notices that it is to end
_READ_TIMEOUT_S = 10.0  # for a request that does not come: a connection costs a thread


class Collected(Collector):
    """What `collect` yields at each scrape."""

    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()

    def describe(self) -> Iterator[Metric]:
        return iter(())  # registering must not collect


class _Handler(WSGIRequestHandler):
    timeout = _READ_TIMEOUT_S

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads of scrapes in a job's log."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False  # a client that keeps its connection open does not keep us
    allow_reuse_address = True
    request_queue_size = 32

    def __init__(self, host: str, port: int) -> None:
        self.address_family = family_of(host)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """As WSGIServer's, but without looking up this machine's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:  # no descriptor is left: the connection waits, and must not keep a core busy meanwhile
            time.sleep(_POLL_S)
            raise

    def handle_error(self, request: object, client_address: object) -> None:
        """A scraper that hangs up is no event."""


@contextmanager
def serving(
    collect: Callable[[], Iterable[Metric]],
    *,
    host: str,
    port: int,
    up_to: int | None = None,
    pages: Mapping[str, Callable[[], bytes]] | None = None,
) -> Iterator[int]:
    """Enters with the port: the first free one from `port` to `up_to`. OSError when there is none.

    At /metrics is what `collect` yields, called in a thread, and the process's own CPU, memory and open files; at each path of
    `pages` the JSON that its function returns.
    """
    registry = CollectorRegistry()
    registry.register(Collected(collect))
    ProcessCollector(registry=registry)
    server = _listen(host, port, port if up_to is None else min(up_to, _HIGHEST_PORT))
    server.set_app(_with_pages(make_wsgi_app(registry), pages or {}))
    thread = Thread(target=server.serve_forever, args=(_POLL_S,), name="deadpool-metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listen(host: str, first: int, last: int) -> _Server:
    for port in range(first, last):
        try:
            return _Server(host, port)
        except OSError:  # taken; why the last one cannot be had, its own error says
            continue
    return _Server(host, last)


def _with_pages(app: Callable[..., Any], pages: Mapping[str, Callable[[], bytes]]) -> Callable[..., Any]:
    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        page = pages.get(environ.get("PATH_INFO", ""))
        if page is None:
            return app(environ, start_response)
        body = page()
        start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]

    return answer
