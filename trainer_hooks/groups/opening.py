"""Opening groups in a daemon thread, so that a deadline, a cancellation or a break can walk away from it.

All of a process's groups take one meeting: each process says where it listens for each of them, and waits until all have. Then
the groups are connected one after the other, without a wait in between for somebody who has not come yet.

For a group that it has open still, and that may stay open, a process says how it stands instead (balance.py). If all members say
what fits together, the group is what it was. Else those who do not listen for it yet do so then, and say where.

Connecting blocks inside torch until its own timeout when a peer does not come. An opening that was walked away from finds that
out when it ends, and gives back what it has opened; nobody else has seen it.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from deadpool.host.errors import UnavailableError
from deadpool.trainer_hooks.groups.balance import Balance, stays_open
from deadpool.trainer_hooks.groups.daemon_threads import daemons
from deadpool.trainer_hooks.groups.inner import InnerGroup, Listener, Membership, abort, connect, listeners
from deadpool.trainer_hooks.groups.sockets import Address
from deadpool.trainer_hooks.torch_internals import PrefixStore, Store

log = logging.getLogger(__name__)
_POLL_S = 0.02
_PAUSE_S, _PAUSE_S_MAX = 0.002, 0.05  # between two looks for the others: so long at least and at most, ...
_PAUSE_SHARE = 1 / 8  # ... and else this share of the wait until then
_ALL = "all are there"
Said = tuple[list[Address], Balance | None]  # of a group, by one of its members: where it listens, or how it stands


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A group to be opened. `name`: under which its members meet. `timeout_s`: of its operations.

    `inner`: what is open of it still, where this process has `balance` to say of it.
    """

    name: str
    membership: Membership
    timeout_s: float
    inner: InnerGroup | None = None
    balance: Balance | None = None


class Opening:
    """Opens groups in `generation`, on `store`.

    `held`: these are all that the process holds, the default group among them. Members may hold others: those that all of their
    members hold are opened, in the order of their names, after the default group. Else the one group waits for its members.
    """

    def __init__(
        self, wanted: Sequence[Wanted], generation: int, store: Store, host: str, timeout_s: float, *, held: bool = False
    ) -> None:
        self._wanted = list(wanted)
        self._generation = generation
        self._store = store
        self._host = host
        self._timeout_s = timeout_s
        self._held = held
        self._deadline_s = time.monotonic() + timeout_s
        self._lock = threading.Lock()
        self._abandoned = False
        self._ended = threading.Event()
        self._at_meeting: Any = PrefixStore(f"g{generation}", store)  # torch's stubs lack multi_set
        self._listening: dict[str, Listener] = {}
        self._inners: dict[str, InnerGroup] = {}
        self._error: Exception | None = None

    def wait(self, cancelled: Callable[[], bool]) -> dict[str, InnerGroup]:
        """Returns the open groups by name, those that have stayed open among them.

        UnavailableError when it failed, took too long or was cancelled: then what was open before is as it was.
        """
        daemons.run(self._run, f"opening of generation {self._generation}'s groups")
        while not self._ended.wait(_POLL_S):
            late = time.monotonic() > self._deadline_s
            if late or cancelled():
                with self._lock:
                    if self._ended.is_set():
                        break
                    self._abandoned = True
                why = f"not open after {self._timeout_s:.1f} s" if late else "cancelled"
                raise UnavailableError(f"groups of generation {self._generation}: {why}")
        if self._error is not None:
            raise UnavailableError(f"groups of generation {self._generation}: {self._error}") from self._error
        return self._inners

    def _run(self) -> None:
        began_s = time.monotonic()
        kept: dict[str, InnerGroup] = {}
        opened: dict[str, InnerGroup] = {}
        try:
            for wanted, peers in self._met(kept):
                opened[wanted.name] = connect(
                    wanted.membership,
                    self._listening[wanted.name],
                    peers,
                    self._store_of(wanted.name),
                    timeout_s=wanted.timeout_s,
                    deadline_s=self._deadline_s,
                    opened=self._prefix(wanted.name),
                )
            log.info(
                "generation %d: %s open after %.3f s, %s kept",
                self._generation, ", ".join(opened), time.monotonic() - began_s, ", ".join(kept) or "none",
            )  # fmt: skip
        except Exception as error:
            self._error = error
        self._inners = {**opened, **kept}
        with self._lock:
            abandoned = self._abandoned
            self._ended.set()
        if abandoned or self._error is not None:
            log.info("opening of generation %d is given back: %s", self._generation, self._error or "nobody waits")
            abort(opened.values())
            for inner in opened.values():
                inner.release()

    def _met(self, kept: dict[str, InnerGroup]) -> Iterator[tuple[Wanted, list[Address]]]:
        """Meets the other processes, notes which groups are `kept`, and yields the others in the same order on all of them.

        With each, where the peers listen. A group that not all its members hold is left out.
        """
        ours = sorted(self._wanted, key=lambda each: (bool(each.membership.global_ranks), each.name))
        self._listen([wanted for wanted in ours if wanted.balance is None])
        self._publish({_key(wanted, wanted.membership.rank): self._said(wanted) for wanted in ours})
        for wanted in ours:
            if not (self._held and wanted.membership.global_ranks):
                self._meet(wanted)
        said = self._all_said(ours)
        for wanted in ours:
            if wanted.inner is not None and stays_open([balance for _, balance in said.get(wanted.name, [([], None)])]):
                kept[wanted.name] = wanted.inner
        late = [wanted for wanted in ours if wanted.balance is not None and wanted.name in said and wanted.name not in kept]
        self._listen(late)
        self._publish(
            {_key(wanted, wanted.membership.rank, late=True): self._listening[wanted.name].addresses for wanted in late}
        )
        for wanted in ours:
            self._go_on()
            if wanted.name in said and wanted.name not in kept:
                yield wanted, self._peers(wanted, said[wanted.name])

    def _listen(self, wanted: Sequence[Wanted]) -> None:
        names = [each.name for each in wanted]
        self._listening.update(zip(names, listeners(self._host, len(names)), strict=True))

    def _publish(self, said: dict[str, Any]) -> None:
        if said:
            self._at_meeting.multi_set(list(said), [json.dumps(each) for each in said.values()])

    def _said(self, wanted: Wanted) -> Any:
        """Returns what this process says of a group: where it listens, and how it stands."""
        if wanted.balance is not None:
            return [[], wanted.balance.to_dict()]
        return [self._listening[wanted.name].addresses, None]

    def _all_said(self, ours: Sequence[Wanted]) -> dict[str, list[Said]]:
        """Returns what the members of each group, by their places, have said of it; of the groups that all members hold."""
        keys = {wanted.name: [_key(wanted, place) for place in range(wanted.membership.size)] for wanted in ours}
        every = [key for each in keys.values() for key in each]
        if not self._at_meeting.check(every):
            keys = {name: each for name, each in keys.items() if self._at_meeting.check(each)}
            every = [key for each in keys.values() for key in each]
        found = dict(zip(every, map(json.loads, self._at_meeting.multi_get(every)), strict=True)) if every else {}
        return {
            name: [(_addresses(found[key][0]), Balance.from_dict(found[key][1])) for key in each] for name, each in keys.items()
        }

    def _peers(self, wanted: Wanted, said: list[Said]) -> list[Address]:
        """Returns where the other members listen, once those have said so who would have kept the group."""
        others = [place for place in range(wanted.membership.size) if place != wanted.membership.rank]
        late = {place: _key(wanted, place, late=True) for place in others if said[place][1] is not None}
        if late:
            self._wait_for(lambda: bool(self._at_meeting.check(list(late.values()))))
        listed = {place: _addresses(json.loads(self._at_meeting.get(key))) for place, key in late.items()}
        return [address for place in others for address in listed.get(place, said[place][0])]

    def _meet(self, wanted: Wanted) -> None:
        """Waits until all members of the group have come to this.

        Asks again and again: a wait inside the store could not be given up, and a thread would stay behind.
        """
        store = self._store_of(wanted.name)
        if store.add("arrived", 1) == wanted.membership.size:
            store.set(_ALL, "")
        self._wait_for(lambda: bool(store.check([_ALL])))

    def _wait_for(self, there: Callable[[], bool]) -> None:
        began_s = time.monotonic()
        while not there():
            self._go_on()
            time.sleep(min(max(_PAUSE_S, _PAUSE_SHARE * (time.monotonic() - began_s)), _PAUSE_S_MAX))

    def _go_on(self) -> None:
        """UnavailableError when nobody waits for the groups any more."""
        if self._abandoned or time.monotonic() > self._deadline_s:
            raise UnavailableError("not all members came")

    def _prefix(self, name: str) -> str:
        return f"g{self._generation}/{name}"

    def _store_of(self, name: str) -> Store:
        return PrefixStore(self._prefix(name), self._store)


def _key(wanted: Wanted, place: int, *, late: bool = False) -> str:
    """Where a member of the group says how it stands and on which addresses it listens; `late`: the latter alone, later."""
    return f"{wanted.name}/{'listening' if late else 'said'}/{place}"


def _addresses(listed: list[list[Any]]) -> list[Address]:
    return [(host, port) for host, port in listed]
