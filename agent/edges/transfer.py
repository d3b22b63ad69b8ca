"""Bytes between the two processes of an MPI pair: posted, then polled with pauses, never waited for in MPI (that spins a core).

MPI says that a peer is frozen to nobody: a transfer that makes no progress for so long ends this process, and with it the pair.
Nor does every launcher end the receiver with the sender: a sender that has nothing to send says that it is there.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from deadpool.host.errors import UnavailableError
from deadpool.proto.frames import LENGTH_BYTES, parse, to_frame

CHUNK_BYTES = 4 << 20
HERE_EVERY_S = 1.0
SILENCE_S = 15.0  # of a sender: then it is gone, or frozen
_WINDOW = 2  # chunks on their way
_FRAME_BYTES = 64 << 10
_SPIN_S = 0.002  # a chunk takes about so long: no pause before
_PAUSE_S = (0.0001, 0.005)  # from, to: longer, the longer nothing comes
_FRAMES, _DATA = 1, 2  # MPI tags


class Transfer:
    """`communicator`: mpi4py's, of two. `check`: called between polls, raises when this process is to end. One thread."""

    def __init__(self, communicator: Any, check: Callable[[], None], stall_s: float) -> None:
        self._communicator, self._peer = communicator, 1 - communicator.rank
        self._between_polls, self._stall_s = [check], stall_s
        self._incoming = bytearray(_FRAME_BYTES)
        self._receiving: Any = None

    def between_polls(self, call: Callable[[], None]) -> None:
        """Has it called as well: before each message is waited for, and some times a second meanwhile."""
        self._between_polls.append(call)

    def send_frame(self, fields: dict[str, object]) -> None:
        frame = to_frame(fields)
        assert len(frame) <= _FRAME_BYTES, f"a frame of {len(frame)} bytes"
        self._finish(self._communicator.Isend(frame, dest=self._peer, tag=_FRAMES), self._stall_s)

    def receive_frame(self, timeout_s: float | None) -> dict[str, Any]:
        """Returns the next frame; UnavailableError when none has come in time. None: it may take as long as it likes."""
        self._finish(self._post(), timeout_s)
        return self._take()

    def poll_frame(self) -> dict[str, Any] | None:
        """Returns the next frame if it is there."""
        return self._take() if self._post().Test() else None

    def send(self, pieces: Iterator[memoryview]) -> None:
        """Sends the pieces, each of which must stay as it is until it has gone; the peer receives as many, of the same sizes."""
        self._move(self._communicator.Isend(piece, dest=self._peer, tag=_DATA) for piece in pieces)

    def receive(self, pieces: Iterator[memoryview], landed: Callable[[], None] = lambda: None) -> None:
        """Fills the pieces; `landed` is called after each."""
        self._move((self._communicator.Irecv(piece, source=self._peer, tag=_DATA) for piece in pieces), landed)

    def _move(self, requests: Iterator[Any], done: Callable[[], None] = lambda: None) -> None:
        under_way: deque[Any] = deque()
        for request in requests:
            under_way.append(request)
            if len(under_way) >= _WINDOW:
                self._finish(under_way.popleft(), self._stall_s)
                done()
        while under_way:
            self._finish(under_way.popleft(), self._stall_s)
            done()

    def _post(self) -> Any:
        if self._receiving is None:
            self._receiving = self._communicator.Irecv(self._incoming, source=self._peer, tag=_FRAMES)
        return self._receiving

    def _take(self) -> dict[str, Any]:
        self._receiving = None
        size = int.from_bytes(self._incoming[:LENGTH_BYTES], "big")
        return parse(bytes(self._incoming[LENGTH_BYTES : LENGTH_BYTES + size]))

    def _finish(self, request: Any, timeout_s: float | None) -> None:
        self._look_around()  # what comes without a pause may come for a long time
        began_s = time.monotonic()
        pause_s = _PAUSE_S[0]
        while not request.Test():
            waited_s = time.monotonic() - began_s
            if timeout_s is not None and waited_s > timeout_s:
                raise UnavailableError(f"no progress for {timeout_s:g} s")
            if waited_s < _SPIN_S:
                time.sleep(0)
                continue
            self._look_around()
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _PAUSE_S[1])

    def _look_around(self) -> None:
        for call in self._between_polls:
            call()
