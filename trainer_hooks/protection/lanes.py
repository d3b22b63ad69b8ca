"""Lanes: threads that copy one state together, a group each at a time. What they copy is handed on in the order of the groups.

One core neither reads nor writes as fast as the memory could. A process uses as many lanes as it has cores of its own: its
share of those that the ranks of its node may run on.
"""

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

from deadpool.trainer_hooks.protection.copy_groups import CopyGroup
from deadpool.trainer_hooks.protection.outgoing import OutgoingState

LANES_MAX = 4  # as many as the memory keeps busy
WORTH_BYTES = 8 << 20  # of a state: a smaller one is copied before another thread would have begun


def lanes_here() -> int:
    """Returns how many lanes this process may use."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    return max(1, min(LANES_MAX, len(os.sched_getaffinity(0)) // max(1, ranks)))


def lanes_for(nbytes: int, lanes: int, *, sends: bool) -> int:
    """Returns how many of them copy a state of this size. `sends`: a sender, who needs a core as well, is at work meanwhile."""
    return max(1, lanes - sends) if nbytes >= WORTH_BYTES else 1


def run_lanes(lanes: int, jobs: int, work: Callable[[int], None]) -> None:
    """Calls work(0), ..., work(jobs - 1), begun in this order, by so many threads, this one among them.

    Returns when all of them have ended; the first error ends it, and is raised.
    """
    turns, errors = count(), list[BaseException]()

    def lane() -> None:
        try:
            while not errors and (job := next(turns)) < jobs:
                work(job)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=lane, name="deadpool-copy", daemon=True) for _ in range(min(lanes, jobs) - 1)]
    started = [thread for thread in threads if _starts(thread)]
    lane()
    for thread in started:
        thread.join()
    if errors:
        raise errors[0]


def _starts(thread: threading.Thread) -> bool:
    try:
        thread.start()
    except RuntimeError:  # the process may have no more threads: this one does it all
        return False
    return True


class Landing:
    """What has landed in the slot, told to the senders in the order of the groups, whichever lane copied it. Any thread.

    `sums`: of the items, in layout order; `copied_bytes`: of those that were not in the slot already.
    """

    def __init__(self, outgoing: OutgoingState | None) -> None:
        self.sums: list[int] = []
        self.copied_bytes = 0
        self._outgoing = outgoing
        self._lock = threading.Lock()
        self._next = 0
        self._waiting: dict[int, list[Callable[[], None]]] = {}
        self._ended: set[int] = set()

    def part(self, number: int, group: CopyGroup, begin: int, end: int) -> None:
        """Bytes [begin, end) of the data, of the one item of the group with this number; the parts before have landed."""
        if self._outgoing is not None:
            self._say(number, partial(self._outgoing.part_landed, group, begin, end))

    def item(self, number: int, total: int, copied_bytes: int) -> None:
        """All parts of that item; its checksum."""
        self._say(number, partial(self._item, total), copied_bytes)

    def group(self, number: int, group: CopyGroup, sums: Sequence[int], copied_bytes: int) -> None:
        """All items of the group; their checksums."""
        self._say(number, partial(self._group, group, sums), copied_bytes)

    def _say(self, number: int, what: Callable[[], None], copied_bytes: int | None = None) -> None:
        """`copied_bytes`: with what ends the group."""
        with self._lock:
            self._waiting.setdefault(number, []).append(what)
            if copied_bytes is not None:
                self.copied_bytes += copied_bytes
                self._ended.add(number)
            while self._next in self._waiting:
                for each in self._waiting.pop(self._next):
                    each()
                if self._next not in self._ended:
                    break
                self._next += 1

    def _item(self, total: int) -> None:
        self.sums.append(total)
        if self._outgoing is not None:
            self._outgoing.item_landed(total)

    def _group(self, group: CopyGroup, sums: Sequence[int]) -> None:
        self.sums += sums
        if self._outgoing is not None:
            self._outgoing.landed(group, sums)
