"""The sockets of a Gloo group, so that its connections can be shut: the only abort that ends a Gloo operation in flight.

Which of the process's sockets are the group's? Not those that appeared while it was opened: other threads open sockets too, and
shutting a stranger's is a real hang. Each Gloo device listens on one port; a connection of the group has that port at one of its
ends. So every member publishes where it listens, and a socket belongs to the group exactly when its own address is where this
member listens (accepted) or its peer's address is where another one does (connected).

Descriptors are duplicated when the group opens: a number could be reused later, a duplicate cannot. Listeners are left alone:
Gloo ends the process when its listener is shut.
"""

import contextlib
import os
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from deadpool.trainer_hooks.groups.daemon_threads import daemons

Address = tuple[str, int]
T = TypeVar("T")
_POLL_S = 0.003
_LET_GO_TIMEOUT_S = 1.0  # Gloo closes its descriptors within milliseconds
_LINGER_S = 0.5
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_ESTABLISHED = 1  # the first byte of tcp_info


def listening_each(makes: Iterable[Callable[[], T]]) -> list[tuple[T, list[Address]]]:
    """Calls one after the other and returns each one's result with the addresses where this process listens since."""
    known = {inode for inode, _ in _listeners()}
    found = []
    for make in makes:
        result = make()
        new = dict(each for each in _listeners() if each[0] not in known)
        known.update(new)
        found.append((result, list(new.values())))
    return found


def connections(own: Iterable[Address], others: Iterable[Address]) -> list[socket.socket]:
    """Returns duplicates of this process's connections between `own` listeners and `others`; close them after use."""
    accepted_at, connected_to = set(own), set(others)
    found = []
    for duplicate in _duplicates():
        if (
            not duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            and (peer := _address(duplicate.getpeername)) is not None
            and (peer in connected_to or _address(duplicate.getsockname) in accepted_at)
        ):
            found.append(duplicate)
        else:
            duplicate.close()
    return found


def is_established(connection: socket.socket) -> bool:
    """Returns whether neither end has closed the connection, as far as this machine knows."""
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == bytes([_ESTABLISHED])


def shut(duplicates: Sequence[socket.socket]) -> threading.Event:
    """Ends the connections for every holder of the same sockets; closes the duplicates, in a thread, when that is safe.

    Returns what is set once Gloo has closed its descriptors: no operation of the group sends or receives any more.

    Gloo's loop thread takes a pending send out of its queue when the peer says that it is ready, and loses it when the write
    then fails: nobody ever wakes the thread that waits for that send. So the sockets are shut for reading first. Gloo reads what
    has arrived, then the end, fails all its operations and closes its descriptor, and only then is the peer told (it must get
    to its own end of the stream in the same way: no reset, hence the pause before the duplicate is closed).
    """
    ended = threading.Event()
    if not duplicates:
        ended.set()
        return ended
    for duplicate in duplicates:
        _shut(duplicate, socket.SHUT_RD)
    daemons.run(lambda: _finish(list(duplicates), ended), "closing of connections", in_torch=False)
    return ended


def _finish(duplicates: list[socket.socket], ended: threading.Event) -> None:
    deadline_s = time.monotonic() + _LET_GO_TIMEOUT_S
    waiting, late = duplicates, False
    while waiting:
        holders = Counter(_socket_inodes())
        late = time.monotonic() > deadline_s
        still = [each for each in waiting if not late and holders[os.fstat(each.fileno()).st_ino] > 1]
        for duplicate in waiting:
            if duplicate not in still:
                _shut(duplicate, socket.SHUT_WR)
        waiting = still
        if waiting:
            time.sleep(_POLL_S)
    if not late:
        ended.set()
    time.sleep(_LINGER_S)
    for duplicate in duplicates:
        duplicate.close()


def _shut(duplicate: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):  # the peer was faster: the connection has ended already, which is what was wanted
        duplicate.shutdown(how)


def _listeners() -> list[tuple[int, Address]]:
    """Returns (inode, address) of every listening internet socket of this process."""
    found = []
    for duplicate in _duplicates():
        with duplicate:
            if duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                address = _address(duplicate.getsockname)
                if address is not None:
                    found.append((os.fstat(duplicate.fileno()).st_ino, address))
    return found


def _socket_inodes() -> Iterator[int]:
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.stat(f"/proc/self/fd/{name}")
        except OSError:
            continue  # closed meanwhile
        if stat.S_ISSOCK(status.st_mode):
            yield status.st_ino


def _duplicates() -> Iterator[socket.socket]:
    """Yields one duplicate of each internet stream socket of this process. What is closed meanwhile is left out."""
    seen = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                continue
            number = os.dup(int(name))
        except OSError:
            continue
        try:
            duplicate = socket.socket(fileno=number)
        except OSError:  # the number has become something else than a socket meanwhile
            os.close(number)
            continue
        inode = os.fstat(duplicate.fileno()).st_ino
        if duplicate.family in _INTERNET and duplicate.type == socket.SOCK_STREAM and inode not in seen:
            seen.add(inode)  # a duplicate of before may have taken a number that was listed
            yield duplicate
        else:
            duplicate.close()


def _address(ask: Callable[[], tuple[str, int]]) -> Address | None:
    try:
        host, port = ask()[:2]
    except OSError:
        return None  # not connected, or not any more
    return host.removeprefix("::ffff:"), port
