"""Which tensors are written to outside of optimizer.step? Learnt from what is seen, because nothing says so.

The copy of S_k is made while step k runs. That is safe for what only optimizer.step changes: it waits at the fence until the copy
is done. Some scripts write to parameters elsewhere in the step as well (a renormalisation, averaging by a collective), often past
the version counter: through `.data`, or as raw memory. Such a tensor is cloned at each boundary from the first sight on, as is
what is volatile by nature. It gives itself away

* at the fence, by other bytes than its copy has. All are compared in the *watched* states, whose copies the main thread waits
  for, so that none of them can be torn: the first ones of a process, and those after any of the following;
* by a version counter that moved while it was copied;
* by other bytes, under the same version counter in the same memory, after some states in which it had not changed at all;
* by other bytes than the process was restored to.

A state in whose copy one of the last three is seen is not trusted: it is refused, and the commit before stays. What cannot be
seen: a tensor that optimizer.step changes in every step, and that is written to before it only now and then, while it is copied.
"""

import logging
from collections.abc import Collection, Mapping, Sequence

from deadpool.trainer_hooks.protection.boundary import Boundary
from deadpool.trainer_hooks.protection.copy_engine import Engine

WATCHED_STATES = 3
_STILL_STATES = 2  # so many states in a row without a change, and the next one past the version counter is suspicious

log = logging.getLogger(__name__)

_Still = tuple[int, int, int, int]  # address, version, checksum, and in how many states it had been the same before


class OutsideWrites:
    """What one process has learnt. `keys`: of the items that are cloned for it."""

    def __init__(self) -> None:
        self.keys: frozenset[str] = frozenset()
        self._watched = 0
        self._still: dict[str, _Still] | None = None
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

    def doubts(self, boundary: Boundary, sums: Sequence[int], touched: list[str]) -> list[str]:
        """Returns the items of this copy that may have changed while it was made. `sums`: of the copied items, in held order;
        `touched`: whose version counters moved meanwhile.
        """
        found = [*touched]
        self._add(touched)
        expected, self._expected = self._expected, None
        if expected is not None:
            keys = ((boundary.held[index].key, sums[index]) for index in boundary.shared)
            found += [key for key, total in keys if expected.get(key, total) != total]
        found += self._moved(boundary, sums)
        if found and not boundary.watched:
            self.watch()
            return found
        return []

    def _moved(self, boundary: Boundary, sums: Sequence[int]) -> list[str]:
        """Returns the items that had not changed for a while, and now have, past their version counters."""
        before, moved = self._still, list[str]()
        if before == {}:  # all have changed since: nothing is left to judge
            return moved
        self._still = {}
        for index in boundary.shared:
            held = boundary.held[index]
            if before is not None and held.key not in before:
                continue
            address, version, total = held.tensor.data_ptr(), boundary.versions[index], sums[index]
            *known, times = before[held.key] if before is not None else (address, version, total, 0)
            if known == [address, version, total]:
                self._still[held.key] = address, version, total, times + 1
            elif known[:2] == [address, version] and times > _STILL_STATES:
                moved.append(held.key)
        return moved

    def _add(self, keys: list[str]) -> None:
        if keys:
            self.keys |= set(keys)
            log.warning(
                "%d tensors, such as %s, are changed outside of optimizer.step: they are cloned after each step from now on",
                len(keys),
                keys[0],
            )
