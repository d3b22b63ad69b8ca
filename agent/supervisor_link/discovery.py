"""Where the supervisor listens: asked at each attempt, for it may be a new one."""

import asyncio
import contextlib
import json
from pathlib import Path

from deadpool.agent.supervisor_link.failover import Failover
from deadpool.host.errors import UnavailableError
from deadpool.proto.terms import newest_endpoint, read_outcome

_POLL_S = 0.02
_GIVE_UP_S = 120.0  # a launcher starts a lost supervisor again within seconds


class Discovery:
    """`endpoint`: HOST:PORT, if it is known for good; else what the folder says: `shared`, or `job_dir`.

    `failover`: with --journal; it knows the newest supervisor, and starts one when there is none.
    """

    poll_s = _POLL_S  # between two looks at whether another one listens

    def __init__(self, job_dir: Path, endpoint: str | None, shared: Path | None, failover: Failover | None) -> None:
        self.failover = failover
        self._job_dir, self._endpoint, self._shared = job_dir, endpoint, shared

    @property
    def local(self) -> bool:
        """Whether the supervisor is on this machine: its end closes the connection."""
        return self.failover is None and self._shared is None and self._endpoint is None

    async def find(self, term: int) -> str:
        """Returns its endpoint; UnavailableError when none of that term, or a higher one, listens."""
        if self._endpoint is not None:
            return self._endpoint
        if self.failover is not None:
            self.failover.absent()
            newest, endpoint = self.failover.find()
            if newest == 0 or newest < term:
                raise UnavailableError("none listens yet")
            return endpoint
        if self._shared is not None:
            if not (endpoint := newest_endpoint(self._shared)[1]):
                raise UnavailableError(f"none listens yet, as {self._shared} says")
            return endpoint
        path = self._job_dir / "endpoint.json"
        while not path.exists():
            if not self._job_dir.exists():
                raise UnavailableError(f"{self._job_dir} is gone")
            await asyncio.sleep(_POLL_S)
        return str(json.loads(path.read_text())["endpoint"])

    def trace(self) -> object:
        """Returns what changes when another supervisor listens."""
        if self.failover is not None:
            return self.failover.find()
        if self._shared is not None:
            return newest_endpoint(self._shared)
        with contextlib.suppress(FileNotFoundError):
            return (self._job_dir / "endpoint.json").stat().st_mtime_ns
        return None

    def why_give_up(self, alone_s: float) -> str:
        """Returns why no supervisor will come any more, "" while one may."""
        over = self._shared is not None and read_outcome(self._shared) is not None
        if over or (self.failover is not None and self.failover.over()):
            return "the job has ended"
        if self.failover is None and alone_s > _GIVE_UP_S:
            return f"no supervisor for {alone_s:.0f} s (with --journal another node would have started the next one)"
        return ""
