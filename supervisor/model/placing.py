"""Where replicas are kept. Pure: nodes, and which of them fail together, in; each node's holders out.

Without a topology each node fails by itself, and the ring is that of the seats: a node's replicas are on the next one. With one,
the ring goes through the nodes domain by domain, and the holders are as many places further as the largest domain has nodes,
twice as many, and so on: so long as that does not lead around the ring, no two of them, and none and the owner, are of one
domain. The steps are the same for all nodes, so each keeps the replicas of as many others as any other one. Domains may be nested
(`pod1/rack3`): the widest ones count of which none has more than half of the nodes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from deadpool.proto.config import Places

SEPARATOR = "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """`holders`: of each member, the nodes that keep its ranks' replicas, the first choice first; as many for each of them.

    `spread`: of so many whole domains together, but no more than there are to be replicas, the loss leaves each member or one of
    its holders. `domains`: of each member and spare, as they count for that; {}: each node fails by itself.
    """

    holders: dict[str, tuple[str, ...]]
    spread: int
    domains: dict[str, str] = field(default_factory=dict)


def place_replicas(
    members: Sequence[str],
    *,
    spares: Sequence[str],
    replicas: int,
    places: Places = Places.RING,
    domains: Mapping[str, str] | None = None,
) -> Placing:
    """Returns who keeps whose replicas: of each member as many other nodes as asked for and possible.

    `members`: in the order of their seats. `domains`: of the nodes of which it is known. With SPARES spares come first, each for
    another member as long as there are enough, unless only others are of another domain; with BOTH a spare keeps one more.
    """
    names = _names(members, spares, domains or {})
    ring, near = _Ring(members, names), _Spares(spares, names)
    in_ring = min(replicas, len(members) - 1)
    besides = replicas - in_ring + (places is Places.BOTH and replicas > 0)
    holders: dict[str, tuple[str, ...]] = {}
    for owner in members:
        others, spare = ring.after(owner, in_ring), near.of(owner, ring.places[owner])
        if places is Places.SPARES:
            holders[owner] = tuple(_spares_first(spare, others, replicas, min(replicas, ring.spread), names, owner))
        else:
            holders[owner] = (*others, *islice(spare, besides))
    together = ring.spread > 0 and any(not names[member].startswith(SEPARATOR) for member in members)
    return Placing(holders=holders, spread=ring.spread, domains=names if together else {})


def spread_of(members: Sequence[str], domains: Mapping[str, str]) -> int:
    """Returns how many whole domains may be lost together if only there are enough replicas; 0 where no two are known."""
    names = _names(members, (), domains)
    named = any(not name.startswith(SEPARATOR) for name in names.values())
    return max(0, len(members) // _largest(members, names) - 1) if named else 0


def _names(members: Sequence[str], spares: Sequence[str], domains: Mapping[str, str]) -> dict[str, str]:
    """Returns the domain of each node, as deep as it counts: the node itself where none is known, or all are of one."""
    alone = {node: f"{SEPARATOR}{node}" for node in (*members, *spares)}  # no other name begins so
    paths = {node: tuple(filter(None, domains.get(node, "").split(SEPARATOR))) for node in alone}
    names = alone
    for depth in range(1, max((len(paths[member]) for member in members), default=0) + 1):
        names = {node: SEPARATOR.join(path[:depth]) or alone[node] for node, path in paths.items()}
        if 2 * _largest(members, names) <= len(members):
            return names
    return names if len(set(names.values())) > 1 else alone


def _largest(members: Sequence[str], names: Mapping[str, str]) -> int:
    return max(Counter(names[member] for member in members).values(), default=1)


class _Ring:
    """The members, domain by domain. `places`: of each in it."""

    def __init__(self, members: Sequence[str], names: Mapping[str, str]) -> None:
        first: dict[str, int] = {}
        for seat, member in enumerate(members):
            first.setdefault(names[member], seat)
        self._order = sorted(members, key=lambda member: first[names[member]])
        self.places = {member: place for place, member in enumerate(self._order)}
        largest = _largest(members, names)
        self.spread = max(0, len(members) // largest - 1)
        apart = range(largest, self.spread * largest + 1, largest)
        around = ((largest + further) % len(members) for further in range(len(members)))
        self._steps = [*apart, *(step for step in around if step and step not in apart)]

    def after(self, owner: str, count: int) -> list[str]:
        """Returns so many others; the first `spread` of them are each of another domain, and not of the owner's."""
        return [self._order[(self.places[owner] + step) % len(self._order)] for step in self._steps[:count]]


class _Spares:
    def __init__(self, spares: Sequence[str], names: Mapping[str, str]) -> None:
        self._spares, self._names = spares, names
        self._elsewhere = {
            domain: [spare for spare in spares if names[spare] != domain] for domain in {names[spare] for spare in spares}
        }

    def of(self, owner: str, place: int) -> Iterator[str]:
        """Yields the spares as they are to keep what the owner has: for the next one in the ring another one is the first.

        Those of the owner's domain come last.
        """
        domain = self._names[owner]
        elsewhere = self._elsewhere.get(domain, self._spares)
        yield from (elsewhere[(place + further) % len(elsewhere)] for further in range(len(elsewhere)))
        if len(elsewhere) < len(self._spares):
            yield from (spare for spare in self._spares if self._names[spare] == domain)


def _spares_first(
    spares: Iterable[str], ring: Sequence[str], count: int, spread: int, names: Mapping[str, str], owner: str
) -> list[str]:
    """Returns so many holders: spares as far as there are, but of so many other domains at least, if need be by the ring."""
    chosen: list[str] = []
    taken, later = {names[owner]}, list[str]()
    for spare in spares if count else ():
        if names[spare] in taken:
            later.append(spare)
            continue
        chosen.append(spare)
        taken.add(names[spare])
        if len(chosen) == count:
            return chosen
    for other in ring:
        if len(chosen) < spread and names[other] not in taken:
            chosen.append(other)
            taken.add(names[other])
    return [*chosen, *(node for node in chain(later, ring) if node not in chosen)][:count]
