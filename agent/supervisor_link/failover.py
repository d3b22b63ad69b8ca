"""Any node can host the supervisor (--journal): when there is none, a node starts the next one, the lowest node that lives first.

Nodes need not agree on who is the lowest: each waits the longer the higher its index, and the term is claimed by one of them only
(proto/terms.py). The supervisor is this agent's child and dies with it, as it would with its machine.
"""

import asyncio
import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from deadpool.agent.processes import ranks
from deadpool.proto.terms import claim_term, newest_endpoint, newest_term, read_outcome, write_outcome

_log = logging.getLogger(__name__)
_GONE_S = 1.0  # a supervisor that listened does not answer for so long: node 0 moves
_NEXT_S = 0.5  # the next index waits so much longer
_START_S = 15.0  # a term was claimed: its supervisor has so long to listen
_FIRST_NEXT_S = 5.0  # the job's first supervisor is node 0's, unless node 0 does not come
_LOST_MAX = 5  # supervisors of this node in a row that ended without the job having ended
_NOBODY_ELSE_S = 30.0  # after that, for another node to host one: longer, and the job ends
_POLL_S = 0.05


class FailoverTurn:
    """Whose turn is it? Pure: what is seen while no supervisor answers in, "claim the next term" out."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._seen = (-1, False)
        self._since_s: float | None = None

    def present(self) -> None:
        self._since_s = None

    def absent(self, *, newest: int, listened: bool, mine: bool, now_s: float) -> bool:
        """`newest`: the highest term claimed. `listened`: it has an endpoint. `mine`: it was this node's child, which is dead."""
        return self._unchanged_s(newest, listened, now_s) >= self._patience_s(newest, listened) or mine

    def nobody_else(self, *, newest: int, listened: bool, now_s: float) -> bool:
        """This node hosts no more supervisors. Returns whether no other one does either."""
        return self._unchanged_s(newest, listened, now_s) >= _NOBODY_ELSE_S

    def _unchanged_s(self, newest: int, listened: bool, now_s: float) -> float:
        if (newest, listened) != self._seen or self._since_s is None:
            self._seen, self._since_s = (newest, listened), now_s
        return now_s - self._since_s

    def _patience_s(self, newest: int, listened: bool) -> float:
        if newest == 0:
            return _FIRST_NEXT_S * self._index
        return (_GONE_S if listened else _START_S) + _NEXT_S * self._index


class Failover:
    """`arguments`: further ones of the supervisor. Claims and starts when `absent()` is called for long enough."""

    def __init__(self, folder: Path, job_dir: Path, host: str, index: int, arguments: Sequence[str]) -> None:
        self._folder, self._job_dir = folder, job_dir
        self._arguments = ["--host", host, *arguments]
        self._turn = FailoverTurn(index if index >= 0 else sys.maxsize)
        self._term = 0  # of the newest child
        self._lost = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._pidfd = -1

    def find(self) -> tuple[int, str]:
        """Returns (term, HOST:PORT) of the newest supervisor; (0, "") when none has ever listened."""
        return newest_endpoint(self._folder)

    def over(self) -> bool:
        """Returns whether the job has ended, as far as anybody can tell."""
        return read_outcome(self._folder) is not None

    def present(self) -> None:
        """A supervisor answers."""
        self._turn.present()
        self._lost = 0

    def absent(self) -> None:
        """None answers."""
        if self._lives() or self.over():
            return
        newest = newest_term(self._folder)
        mine = newest == self._term > 0
        listened = self.find()[0] == newest
        if self._lost > _LOST_MAX:
            if self._turn.nobody_else(newest=newest, listened=listened, now_s=time.monotonic()):
                _log.critical("this node's supervisors were lost %d times, and no other node hosts one: the job ends", self._lost)
                write_outcome(self._folder, 1)
        elif self._turn.absent(newest=newest, listened=listened, mine=mine, now_s=time.monotonic()):
            self._lost += mine
            if self._lost <= _LOST_MAX and claim_term(self._folder, newest + 1):
                self._start(newest + 1)

    async def end(self, *, politely_s: float, tell: bool) -> None:
        """Waits for the child's end, which is the job's; `tell`: it is asked for. After the time it is killed."""
        if tell:
            self._signal(signal.SIGTERM)
        deadline_s = time.monotonic() + politely_s
        while self._lives() and time.monotonic() < deadline_s:
            await asyncio.sleep(_POLL_S)
        self._signal(signal.SIGKILL)
        while self._lives():
            await asyncio.sleep(_POLL_S)

    def signal(self, number: int) -> None:
        """Sends the signal to the supervisor that this node hosts, if it hosts one."""
        self._signal(number)

    def _start(self, term: int) -> None:
        _log.info("starting the supervisor of term %d", term)
        own = ["--job-dir", str(self._job_dir), "--term", str(term), "--dies-with-parent", *self._arguments]
        command = [sys.executable, "-P", "-m", "deadpool.supervisor.main", *own]
        self._child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        self._pidfd = os.pidfd_open(self._child.pid)
        ranks.spared.add(self._child.pid)
        self._term = term

    def _lives(self) -> bool:
        if self._child is None:
            return False
        if not select.select([self._pidfd], [], [], 0)[0]:
            return True
        ranks.spared.discard(self._child.pid)
        self._child.wait()
        os.close(self._pidfd)
        self._child = None
        return False

    def _signal(self, number: int) -> None:
        if self._lives() and self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)
