"""The page that --dashboard serves: the job as `deadpool status --json` has it, and its events, live (docs/monitoring.md).

The page itself holds nothing of the job; what it shows it asks for with a key. It only looks: no request here changes anything.
"""

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web

from deadpool.host.addresses import join_host_port
from deadpool.host.console import tell
from deadpool.host.errors import ConfigError
from deadpool.proto.convert import status_as_plain
from deadpool.proto.messages.status import JobStatus
from deadpool.proto.secret import token_matches, view_key
from deadpool.supervisor.journal.event_log import EventLog

FIRST_PORT, LAST_PORT = 8470, 8533  # where no port is asked for: the first free one
_EVERY_S = 1.0
_SHARE_OF_CORE = 0.05  # that encoding may take: the status of a large job is sent more seldom
_GATHER_S = 0.1  # events come in bursts
_FRESH_S = 0.2
_VIEWERS_MAX = 32
_LINES_AT_A_TIME = 500
_END_S = 2.0  # for what viewers still have to hear
_BEARER = "Bearer "
_PARTS = Path(__file__).parent


def page() -> tuple[str, str]:
    """Returns the page, one file, and the policy with which a browser runs only what is in it."""
    style, script = ((_PARTS / name).read_text() for name in ("page.css", "page.js"))
    text = (_PARTS / "page.html").read_text().replace("/* page.css */", style).replace("/* page.js */", script)
    policy = f"style-src {_hash_of(style)}; script-src {_hash_of(script)}; connect-src 'self'; img-src 'self'"
    return text, f"default-src 'none'; {policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def _hash_of(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


class _CurrentStatus:
    """The status as a message, made once for all viewers, in a thread: the supervisor's loop has better to do."""

    def __init__(self, ask: Callable[[], JobStatus]) -> None:
        self._ask = ask
        self._lock = asyncio.Lock()
        self._message, self._made_s = b"", float("-inf")
        self.every_s = _EVERY_S

    async def message(self) -> bytes:
        async with self._lock:
            if time.monotonic() - self._made_s > _FRESH_S:
                began_s = time.monotonic()
                self._message = await asyncio.to_thread(_status_message, self._ask())
                self._made_s = time.monotonic()
                self.every_s = max(_EVERY_S, (self._made_s - began_s) / _SHARE_OF_CORE)
            return self._message


def _status_message(status: JobStatus) -> bytes:
    return _message("status", json.dumps({"now": datetime.now(UTC).isoformat(), "status": status_as_plain(status)}))


def _message(kind: str, content: str) -> bytes:
    """Returns a message of a text/event-stream. `content`: JSON of one line."""
    return f"event: {kind}\ndata: {content}\n\n".encode()


class Dashboard:
    """`token`: the job's; the key that is made of it opens the page as well."""

    def __init__(self, status: Callable[[], JobStatus], events: EventLog, token: str) -> None:
        self._status = _CurrentStatus(status)
        self._events = events
        self._keys = (view_key(token), token)
        self._page, self._policy = page()
        self._viewers = 0
        self._refused: set[str] = set()

    def application(self) -> web.Application:
        application = web.Application()
        application.add_routes(
            [web.get("/", self._open), web.get("/api/live", self._live), web.get("/favicon.ico", self._no_icon)]
        )
        return application

    async def _open(self, request: web.Request) -> web.Response:
        headers = {
            "Content-Security-Policy": self._policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        return web.Response(text=self._page, content_type="text/html", headers=headers)

    async def _no_icon(self, request: web.Request) -> web.Response:
        return web.Response(status=204)

    async def _live(self, request: web.Request) -> web.StreamResponse:
        """The events after the first so many (`after`), the status, and both again as they change, until the job's end."""
        if not self._admits(request):
            return web.Response(status=401, text="the job's key is missing or wrong\n", headers={"WWW-Authenticate": "Bearer"})
        if self._viewers >= _VIEWERS_MAX:
            return web.Response(status=503, text=f"{_VIEWERS_MAX} look at this job already\n")
        after = request.query.get("after", "0")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        self._viewers += 1
        try:
            await response.prepare(request)
            async for message in self._messages(int(after) if after.isdecimal() else 0):
                await response.write(message)
        except ConnectionError:  # whoever looked has gone
            pass
        finally:
            self._viewers -= 1
        return response

    def _admits(self, request: web.Request) -> bool:
        shown = request.headers.get("Authorization", "")
        key = shown.removeprefix(_BEARER) if shown.startswith(_BEARER) else ""
        if any(token_matches(each, key) for each in self._keys):
            return True
        host = request.remote or "?"
        if host not in self._refused:
            self._refused.add(host)
            tell(f"deadpool: refused {host} at the page: it does not show the job's key")
        return False

    async def _messages(self, sent: int) -> AsyncIterator[bytes]:
        sent = sent if sent <= self._events.count else 0  # another supervisor's, of another job
        while True:
            over = self._events.is_closed  # before the lines are read: then these are all
            while lines := self._events.some(sent, _LINES_AT_A_TIME):
                yield _message("events", f'{{"from": {sent}, "events": [{", ".join(lines)}]}}')
                sent += len(lines)
            yield await self._status.message()
            if over:
                yield _message("end", "{}")
                return
            if await self._events.grown(sent, self._status.every_s):
                await asyncio.sleep(_GATHER_S)


@asynccontextmanager
async def serving(dashboard: Dashboard, *, host: str, port: int) -> AsyncIterator[str]:
    """Enters with the page's address. `port`: 0 for the first free one. ConfigError when it cannot be had."""
    runner = web.AppRunner(dashboard.application(), access_log=None, shutdown_timeout=_END_S, handle_signals=False)
    await runner.setup()
    try:
        bound = await _listen(runner, host, [port] if port else range(FIRST_PORT, LAST_PORT + 1))
        yield f"http://{join_host_port(host, bound)}"
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, host: str, ports: "list[int] | range") -> int:
    reason = ""
    for port in ports:
        try:
            await web.TCPSite(runner, host, port).start()
            return port
        except OSError as error:
            reason = error.strerror or str(error)
    raise ConfigError(f"--dashboard {join_host_port(host, ports[-1])}: cannot listen there, choose another ({reason})")
