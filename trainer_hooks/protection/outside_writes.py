"""Which tensors are written to outside of optimizer.step? Learnt from what is seen, because nothing says so.

The copy of S_k is made while step k runs. That is safe for what only optimizer.step changes: it waits at the fence until the copy
is done. Some scripts write to parameters elsewhere in the step as well (a renormalisation, averaging by a collective), often past
the version counter: through `.data`, or as raw memory. Such a tensor is cloned at each boundary from the first sight on, as is
what is volatile by nature. It gives itself away

* at the fence, by other bytes than its copy has. All are compared in the *watched* states, whose copies the main thread waits
  for, so that none of them can be torn: the first ones of a process, and those after any of the following;
* by a version counter, or a storage, that moved while it was copied;
* by other bytes, under the same version counter in the same memory, after some states in which it had not changed at all;
* by other bytes than the process was restored to.

A state in whose copy one of the last three is seen is not trusted: it is refused, and the commit before stays. What cannot be
seen: a tensor that optimizer.step changes in every step, and that is written to before it only now and then, while it is copied.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from deadpool.trainer_hooks.protection.boundary import Boundary, Captured
from deadpool.trainer_hooks.protection.copy_engine import Engine

WATCHED_STATES = 3
_STILL_STATES = 2  # so many states in a row without a change, and the next one past the version counter is suspicious

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Still:
    """Items that have not changed for `times` states, by their `indices` among what is held: version and checksum of each."""

    captured: Captured
    indices: NDArray[numpy.intp]
    versions: NDArray[numpy.int64]
    sums: NDArray[numpy.uint64]
    times: NDArray[numpy.int64]

    def where(self, captured: Captured) -> tuple[NDArray[numpy.intp], NDArray[numpy.bool_]]:
        """Returns which of them are among these held tensors, shared and in the same memory, and the indices of those."""
        if captured is self.captured:
            return self.indices, numpy.ones(len(self.indices), dtype=bool)
        index_of = {captured.held[index].key: index for index in captured.shared}
        now = numpy.array([index_of.get(self.captured.held[index].key, -1) for index in self.indices], dtype=numpy.intp)
        there = now >= 0
        there[there] = captured.addresses[now[there]] == self.captured.addresses[self.indices[there]]
        return now[there], there


class OutsideWrites:
    """What one process has learnt. `keys`: of the items that are cloned for it."""

    def __init__(self) -> None:
        self.keys: frozenset[str] = frozenset()
        self._watched = 0
        self._still: _Still | None = None
        self._expected: Mapping[str, int] | None = None

    def begin(self, *, expected: Mapping[str, int] | None = None, keys: Collection[str] = ()) -> None:
        """The process holds a state that did not come from a step of its own; `expected`: checksums of its items, `keys`: what
        was known when it was captured.
        """
        self._still, self._expected = None, expected
        self.keys |= set(keys)

    def watch(self) -> None:
        self._watched = WATCHED_STATES

    def is_watched(self) -> bool:
        """Returns whether the state that is captured now is to be watched; asked once for each."""
        left, self._watched = self._watched, max(0, self._watched - 1)
        return left > 0

    def at_fence(self, boundary: Boundary, engine: Engine) -> None:
        """Compares all tensors of a watched state with their copies, before optimizer.step may change them. Main thread."""
        if boundary.copies is not None:
            pairs = ((boundary.held[index], boundary.copies[index]) for index in boundary.shared)
            self._add([held.key for held, copy in pairs if not engine.same(held.tensor, copy)])

    def doubts(self, boundary: Boundary, sum_of: Callable[[int], int], touched: list[str]) -> list[str]:
        """Returns the items of this copy that may have changed while it was made. `sum_of`: the checksum of a held item, by its
        index; `touched`: whose version counters moved meanwhile.
        """
        found = [*touched]
        self._add(touched)
        expected, self._expected = self._expected, None
        if expected is not None:
            keys = ((boundary.held[index].key, sum_of(index)) for index in boundary.shared)
            found += [key for key, total in keys if expected.get(key, total) != total]
        found += self._moved(boundary, sum_of)
        if found and not boundary.watched:
            self.watch()
            return found
        return []

    def _moved(self, boundary: Boundary, sum_of: Callable[[int], int]) -> list[str]:
        """Returns the items that had not changed for a while, and now have, past their version counters."""
        captured, before = boundary.captured, self._still
        if before is None:
            indices = numpy.array(boundary.shared, dtype=numpy.intp)
            self._still = _Still(captured, indices, boundary.versions[indices], _sums(indices, sum_of), numpy.ones_like(indices))
            return []
        if not len(before.indices):  # all have changed since: nothing is left to judge
            return []
        indices, there = before.where(captured)
        unwritten = boundary.versions[indices] == before.versions[there]
        indices, sums, times = indices[unwritten], before.sums[there][unwritten], before.times[there][unwritten]
        same = _sums(indices, sum_of) == sums
        left = indices[same]
        self._still = _Still(captured, left, boundary.versions[left], sums[same], times[same] + 1)
        return [boundary.held[index].key for index in indices[~same & (times > _STILL_STATES)]]

    def _add(self, keys: list[str]) -> None:
        if keys:
            self.keys |= set(keys)
            log.warning(
                "%d tensors, such as %s, are changed outside of optimizer.step: they are cloned after each step from now on",
                len(keys),
                keys[0],
            )


def _sums(indices: NDArray[numpy.intp], sum_of: Callable[[int], int]) -> NDArray[numpy.uint64]:
    return numpy.fromiter(map(sum_of, indices.tolist()), numpy.uint64, len(indices))
