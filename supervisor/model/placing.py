"""Where replicas are kept. Pure: nodes, and which fail together, in; each node's holders out.

Without a topology each node fails by itself, and the ring is that of the seats: a node's replicas are on the next one. With one,
the ring goes through the nodes domain by domain, and a node's holder is as many places further as the largest domain has nodes.
So as long as no domain has more than half of the nodes, every holder is in another domain than its owner, and every node keeps
the replicas of as many others as any other one does. Domains may be nested (`pod1/rack3`): the widest ones for which that holds
are used.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

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
    followers = _ring(members, domains, depth)
    names = {node: domain_of(node, domains, depth or _DEEPEST) for node in (*members, *spares)}
    holders: dict[str, tuple[str, ...]] = {}
    for seat, owner in enumerate(members):
        turn = seat % len(spares) if spares else 0
        near = [*spares[turn:], *spares[:turn]]
        others = [*near, *followers[owner]] if places is Places.SPARES else [*followers[owner], *near]
        chosen = _apart(owner, others, replicas, names)
        if places is Places.BOTH:
            chosen += _apart(owner, [spare for spare in near if spare not in chosen], min(1, replicas), names)
        holders[owner] = tuple(chosen)
    return holders


def _ring(members: Sequence[str], domains: Mapping[str, str], depth: int) -> dict[str, list[str]]:
    """Returns the other members for each, as they follow it in the ring."""
    size = len(members)
    order = sorted(range(size), key=lambda seat: (domain_of(members[seat], domains, depth) if depth else "", seat))
    largest = max(Counter(domain_of(member, domains, depth) for member in members).values(), default=1) if depth else 1
    followers = {}
    for place, seat in enumerate(order):
        around = [members[order[(place + largest + further) % size]] for further in range(size)]
        followers[members[seat]] = [member for member in around if member != members[seat]]
    return followers


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


def _apart(owner: str, others: Sequence[str], count: int, domains: Mapping[str, str]) -> list[str]:
    """Returns so many of the others in their order: first those of domains that nobody chosen and not the owner is of."""
    chosen: list[str] = []
    taken = {domains[owner]}
    for wanted in ("new", "not the owner's", "any"):
        for other in others:
            domain = domains[other]
            fits = domain not in taken if wanted == "new" else wanted == "any" or domain != domains[owner]
            if len(chosen) < count and other not in chosen and fits:
                chosen.append(other)
                taken.add(domain)
    return chosen
