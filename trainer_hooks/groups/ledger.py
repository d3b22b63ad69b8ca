"""What one member of an open group knows of it: the calls that have begun and ended since it was opened, and the messages."""

import itertools
import threading
from collections import Counter

from deadpool.trainer_hooks.groups.balance import Balance


class Ledger:
    """One member's account of one open group, in whichever generations it is used. Thread-safe.

    A call begins in it before its caller looks, for the last time, whether the generation has broken. So whoever reads it after
    the break misses none. A call that fails never ends.
    """

    def __init__(self) -> None:
        self._begun, self._ended = _Count(), _Count()
        self.begin, self.end = self._begun.add, self._ended.add  # bound once: they are a part of every call
        self._lock = threading.Lock()
        self._messages = 0
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()
        self.failed = False

    def sends(self, place: int) -> None:
        """The call that has begun is a message to this place."""
        with self._lock:
            self._messages += 1
            self._sent[place] += 1

    def receives(self, place: int | None) -> None:
        """The call that has begun is a message from this place; None: `received` will say from which."""
        with self._lock:
            self._messages += 1
            if place is not None:
                self._received[place] += 1

    def received(self, place: int) -> None:
        with self._lock:
            self._received[place] += 1

    @property
    def is_idle(self) -> bool:
        """Whether every call that has begun has ended well."""
        ended = self._ended.value()  # first: one that begins and ends in between must not stand for another
        return ended == self._begun.value() and not self.failed

    def balance(self, opened: str, sequence: int) -> Balance | None:
        """Returns what this member says of the group; None when it cannot stay open."""
        if not self.is_idle:
            return None
        with self._lock:
            return Balance(
                opened=opened,
                collectives=self._begun.value() - self._messages,
                sequence=sequence,
                sent=dict(self._sent),
                received=dict(self._received),
            )


class _Count:
    """A number that any thread raises by one without a lock."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self.add = self._numbers.__next__
        self._lock = threading.Lock()
        self._looks = 0  # each has raised it, too

    def value(self) -> int:
        with self._lock:
            self._looks += 1
            return next(self._numbers) - self._looks + 1
