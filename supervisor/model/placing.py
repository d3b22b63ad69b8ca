"""Where replicas are kept. Pure: nodes, and which fail together, in; each node's holders out.

Without a topology each node fails by itself, and the ring is that of the seats: a node's replicas are on the next one. With one,
the ring goes through the nodes domain by domain, and a node's holder is as many places further as the largest domain has nodes.
So as long as no domain has more than half of the nodes, every holder is in another domain than its owner, and every node keeps
the replicas of as many others as any other one does. Domains may be nested (`pod1/rack3`): the widest ones for which that holds
are used.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from deadpool.proto.config import Places

SEPARATOR = "/"
_DEEPEST = 99  # all parts of a name


def choose_holders(
    members: Sequence[str],
    *,
    spares: Sequence[str],
    replicas: int,
    places: Places = Places.RING,
    domains: Mapping[str, str] | None = None,
) -> dict[str, tuple[str, ...]]:
    """Returns for each member the nodes that keep its ranks' replicas, the first choice first: as many as asked for and possible.

    `members`: in the order of their seats. `domains`: of the nodes of which it is known. With SPARES spares come first, each for
    another member as long as there are enough, unless only others are of another domain; with BOTH a spare keeps one more.
    """
    domains = domains or {}
    depth = depth_of_domains(members, domains)
    names = {node: domain_of(node, domains, depth or _DEEPEST) for node in (*members, *spares)}
    if len(set(names.values())) == 1:  # one switch for all says nothing
        names = {node: node for node in names}
    ring = _Ring(members, names if depth else {})
    holders: dict[str, tuple[str, ...]] = {}
    for seat, owner in enumerate(members):
        near = _Turned(spares, seat)
        orders = (near, ring.after(owner)) if places is Places.SPARES else (ring.after(owner), near)
        chosen = _apart(owner, orders, replicas, names)
        if places is Places.BOTH:
            chosen += _apart(owner, (_Turned([spare for spare in spares if spare not in chosen], seat),), min(1, replicas), names)
        holders[owner] = tuple(chosen)
    return holders


@dataclass(frozen=True, slots=True)
class _Turned:
    """The nodes from this place on, all around, without making a list: there may be thousands, for each of thousands."""

    nodes: Sequence[str]
    first: int

    def __iter__(self) -> Iterator[str]:
        return (self.nodes[(self.first + further) % len(self.nodes)] for further in range(len(self.nodes)))


class _Ring:
    """`domains`: by member; {}: each fails by itself."""

    def __init__(self, members: Sequence[str], domains: Mapping[str, str]) -> None:
        self._order = sorted(members, key=lambda member: domains[member]) if domains else list(members)
        self._places = {member: place for place, member in enumerate(self._order)}
        self._largest = max(Counter(domains[member] for member in members).values()) if domains else 1

    def after(self, member: str) -> _Turned:
        """Returns the members as they follow this one, the first of them in another domain; it is among them."""
        return _Turned(self._order, self._places[member] + self._largest)


def depth_of_domains(members: Sequence[str], domains: Mapping[str, str]) -> int:
    """Returns how many parts of the domains' names count: as few as give domains of half of the members at most; 0: none do."""
    deepest = max((len(domains[member].split(SEPARATOR)) for member in members if domains.get(member)), default=0)
    for depth in range(1, deepest + 1):
        if 2 * max(Counter(domain_of(member, domains, depth) for member in members).values()) <= len(members):
            return depth
    return 0


def domain_of(node: str, domains: Mapping[str, str], depth: int) -> str:
    """Returns the name of the node's domain at that depth; a node of which nothing is known has its own."""
    named = domains.get(node, "") if depth else ""
    return SEPARATOR.join(named.split(SEPARATOR)[:depth]) if named else f"{SEPARATOR}{node}"


def _apart(owner: str, orders: Sequence[Iterable[str]], count: int, domains: Mapping[str, str]) -> list[str]:
    """Returns so many others in this order: first those of domains that nobody chosen and not the owner is of."""
    chosen: list[str] = []
    taken = {domains[owner]}
    for wanted in ("new", "not the owner's", "any"):
        for other in itertools.chain(*orders) if len(chosen) < count else ():
            domain = domains[other]
            fits = domain not in taken if wanted == "new" else wanted == "any" or domain != domains[owner]
            if fits and other != owner and other not in chosen:
                chosen.append(other)
                taken.add(domain)
                if len(chosen) == count:
                    break
    return chosen
