"""An MPI pair without MPI: both ends in one process of its own, with queues for a communicator.

    python fake_pair.py OWNERS_VAULT HOLDERS_VAULT HOLDER

It ends with its stdin. What would kill one of a pair's processes kills both.
"""

import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from deadpool.agent.edges.receiver import EdgeReceiver
from deadpool.agent.edges.sender import EdgeSender
from deadpool.agent.edges.transfer import Transfer
from deadpool.proto.vault.edge import STALL_S


class Done:
    def __init__(self, is_done: Callable[[], bool]) -> None:
        self._is_done = is_done

    def Test(self) -> bool:
        return self._is_done()


class Communicator:
    """One end; what is sent arrives at the other one's receives in the order in which both were posted."""

    def __init__(self, rank: int, sent: "dict[int, deque[bytes]]", coming: "dict[int, deque[bytes]]") -> None:
        self.rank, self._sent, self._coming = rank, sent, coming

    def Isend(self, data: memoryview | bytes, *, dest: int, tag: int) -> Done:
        self._sent.setdefault(tag, deque()).append(bytes(data))
        return Done(lambda: True)

    def Irecv(self, target: memoryview | bytearray, *, source: int, tag: int) -> Done:
        def arrive() -> bool:
            coming = self._coming.setdefault(tag, deque())
            if coming:
                data = coming.popleft()
                target[: len(data)] = data
                return True
            return False

        return Done(arrive)


def ends(stall_s: float) -> tuple[Transfer, Transfer]:
    """Returns the sender's and the receiver's."""
    there: dict[int, deque[bytes]] = {}
    back: dict[int, deque[bytes]] = {}
    return (
        Transfer(Communicator(0, there, back), lambda: None, stall_s),
        Transfer(Communicator(1, back, there), lambda: None, stall_s),
    )


@contextmanager
def fake_pair(owners: Path, holders: Path, holder: str) -> Iterator[None]:
    """Enters once the sender to that holder listens in the owner's vault."""
    command = [sys.executable, __file__, str(owners), str(holders), holder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline()
        try:
            yield
        finally:
            process.stdin.close()


def main() -> None:
    owners, holders, holder = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    at_sender, at_receiver = ends(STALL_S)
    agent, _ours = socket.socketpair()
    sender = EdgeSender(at_sender, owners, holder)
    threading.Thread(target=EdgeReceiver(at_receiver, holders).serve, daemon=True).start()
    threading.Thread(target=sender.serve, args=(agent,), daemon=True).start()
    print("listens", flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
