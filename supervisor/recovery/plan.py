"""Where does every rank get its state from? Pure: what live processes and vaults hold in, one step k and one source per rank out.

States of a dead branch (model/lineage.py) are no sources.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from deadpool.proto.messages import NO_STEP, CopyConflict, Endpoint, Peer, Slot, SlotKind, Source, SourceKind
from deadpool.supervisor.model.lineage import Sent, usable

_Snapshots = dict[tuple[int, int], tuple[int, str]]  # (rank, step) -> (generation, node)
_Replicas = dict[tuple[int, int], list[tuple[str, Slot]]]  # (rank, step) -> (node, replica)


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The state that a rank's process holds, untouched."""

    rank: int
    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A step after which a plan should not resume, and what it is the step of, for people."""

    step: int
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`newest_step`: the largest that every rank has a source of. `resume_step` is before it where a bound says so."""

    resume_step: int
    newest_step: int
    sources: tuple[Source, ...]  # of rank 0, 1, ...; none of those that are excluded


def as_good_as_committed(
    resume_step: int, *, commit_step: int, vaults: Mapping[str, Sequence[Slot]], lineage: Sequence[Sent]
) -> int:
    """Returns the largest step up to resume_step of which every place has a sealed state that has one of the newest known commit.

    Places that have a later one count too. It may have been committed without anybody alive having learnt of it, and it is at
    least as safe to keep. A state in which ranks have parted and some have not sealed that yet was not committed, and cannot be
    restored once a node is lost: the one before is kept. NO_STEP: there is none.
    """
    places: dict[tuple[str, SlotKind, int], set[int]] = {}
    copies: dict[int, list[Slot]] = {}
    for node_id, slots in vaults.items():
        for slot in slots:
            if slot.step >= commit_step and usable(slot.generation, slot.step, lineage):
                places.setdefault((node_id, slot.kind, slot.rank), set()).add(slot.step)
                copies.setdefault(slot.step, []).append(slot)
    if commit_step == NO_STEP or not places:
        return NO_STEP
    everywhere = (step for step in set.intersection(*places.values()) if step <= resume_step)
    return max((step for step in everywhere if _agree(copies[step])), default=NO_STEP)


def newest_alike(ranks: Iterable[int], *, vaults: Mapping[str, Sequence[Slot]], lineage: Sequence[Sent]) -> int:
    """Returns the largest step of which there is a copy of each of these ranks, that all say the same; NO_STEP: there is none."""
    copies: dict[int, list[Slot]] = {}
    for slot in (slot for slots in vaults.values() for slot in slots):
        if usable(slot.generation, slot.step, lineage):
            copies.setdefault(slot.step, []).append(slot)
    wanted = set(ranks)
    alike = (
        step
        for step, found in copies.items()
        if wanted <= {slot.rank for slot in found} and all(slot.peer_sets for slot in found) and _agree(found)
    )
    return max(alike, default=NO_STEP)


def _agree(copies: Iterable[Slot]) -> bool:
    """Returns whether each copy of a state says the same of what a set of ranks holds together, and each rank of the set does."""
    found: dict[tuple[int, ...], dict[int, set[int]]] = {}
    for slot in copies:
        for each in slot.peer_sets:
            said = found.setdefault(tuple(sorted((slot.rank, *each.ranks))), {})
            said.setdefault(slot.rank, set()).add(each.digest)
    return all(said.keys() == set(ranks) and len(set.union(*said.values())) == 1 for ranks, said in found.items())


def plan_recovery(
    *,
    homes: Sequence[str],
    live: Iterable[Live],
    vaults: Mapping[str, Sequence[Slot]],
    endpoints: Mapping[str, Endpoint],
    lineage: Sequence[Sent],
    conflicts: Collection[CopyConflict] = (),
    bounds: Collection[Bound] = (),
    excluded: Collection[int] = (),
    stale: Collection[int] = (),
) -> tuple[Plan | None, str]:
    """Returns (the plan with the largest step, why), or (None, which ranks are without a source).

    The plan does not resume after the lowest of `bounds`, unless that is all that there is a source of.

    `homes[r]`: the node where rank r is placed. `vaults`: what each live node's vault holds; nodes without endpoint are not used.
    For each rank, its live state comes first, then its snapshot at home, then a replica (one at home before others), then its
    snapshot on a live node where it lived before (the newest generation of each). A replica does not count on a peer that it has
    been found to contradict. `excluded` ranks need no source. For `stale` ones, which were so, any other rank's snapshot is one,
    or a replica that leaves nothing out: that rank holds the same.
    """
    ranks = [rank for rank in range(len(homes)) if rank not in excluded]
    states = {each.rank: each for each in live if usable(each.generation, each.step, lineage)}
    at_home: dict[tuple[int, int], int] = {}
    snapshots: _Snapshots = {}
    replicas: _Replicas = {}
    for node_id, slots in sorted(vaults.items()):
        for slot in slots:
            if node_id not in endpoints or not usable(slot.generation, slot.step, lineage):
                continue
            key = (slot.rank, slot.step)
            if slot.kind is SlotKind.REPLICA:
                replicas.setdefault(key, []).append((node_id, slot))
                continue
            if slot.generation > snapshots.get(key, (-1, ""))[0]:
                snapshots[key] = (slot.generation, node_id)
            if 0 <= slot.rank < len(homes) and homes[slot.rank] == node_id:
                at_home[key] = max(slot.generation, at_home.get(key, -1))

    def source_of(rank: int, step: int) -> Source | None:
        if rank in states and states[rank].step == step:
            return Source(rank=rank, kind=SourceKind.LIVE, slot_generation=states[rank].generation)
        if (rank, step) in at_home:
            return Source(rank=rank, kind=SourceKind.VAULT, slot_generation=at_home[rank, step])
        found = sorted(replicas.get((rank, step), ()), key=lambda held: (-held[1].generation, held[0] != homes[rank]))
        for node_id, slot in found:
            peers = _peers(slot, snapshots, endpoints, conflicts)
            held = {peer.rank for peer in peers}
            if all(held & set(each.ranks) for each in slot.peer_sets):
                return Source(
                    rank=rank,
                    kind=SourceKind.REPLICA,
                    slot_generation=slot.generation,
                    endpoint=endpoints[node_id],
                    peers=peers,
                )
        if (rank, step) in snapshots:
            generation, node_id = snapshots[rank, step]
            return Source(rank=rank, kind=SourceKind.ELSEWHERE, slot_generation=generation, endpoint=endpoints[node_id])
        if rank in stale:
            return _from_any_peer(rank, [each for each in ranks if each not in stale], step, snapshots, replicas, endpoints)
        return None

    steps = {state.step for state in states.values()} | {step for _, step in (*snapshots, *replicas)}
    bound = min(bounds, key=lambda each: each.step, default=None)
    closest: tuple[int, list[int]] | None = None
    plan: Plan | None = None
    for step in sorted(steps, reverse=True):
        sources = [source_of(rank, step) for rank in ranks]
        missing = [rank for rank, source in zip(ranks, sources, strict=True) if source is None]
        if not missing:
            newest_step = plan.newest_step if plan is not None else step
            plan = Plan(resume_step=step, newest_step=newest_step, sources=tuple(filter(None, sources)))
            if bound is None or step <= bound.step:
                break
        elif closest is None or len(missing) < len(closest[1]):
            closest = (step, missing)
    if plan is not None:
        return plan, _why(plan, bound)
    if closest is None:
        return None, f"no rank holds any state: gone is that of rank {', '.join(map(str, ranks))}"
    missing_ranks = ", ".join(map(str, closest[1]))
    reason = f"there is no source of step {closest[0]} for rank {missing_ranks}, and it is no better at other steps"
    contradictions = _contradictions(closest[1], lineage, conflicts)
    return None, f"{reason}; {contradictions}" if contradictions else reason


def _why(plan: Plan, bound: Bound | None) -> str:
    why = f"every rank has a source of step {plan.resume_step}"
    if bound is not None and plan.resume_step < plan.newest_step:
        return f"{why}; those of step {plan.newest_step} are later than {bound.what}"
    return why


def _peers(
    slot: Slot, snapshots: _Snapshots, endpoints: Mapping[str, Endpoint], conflicts: Collection[CopyConflict]
) -> tuple[Peer, ...]:
    """Returns every usable snapshot of the slot's step that belongs to one of its peer sets and is not known to contradict it."""
    state = slot.rank, slot.generation, slot.step
    unfit = {(each.peer, each.peer_generation) for each in conflicts if (each.rank, each.generation, each.step) == state}
    ranks = sorted({rank for peers in slot.peer_sets for rank in peers.ranks})
    found = ((rank, *snapshots[rank, slot.step]) for rank in ranks if (rank, slot.step) in snapshots)
    return tuple(
        Peer(rank=rank, slot_generation=generation, endpoint=endpoints[node_id])
        for rank, generation, node_id in found
        if (rank, generation) not in unfit
    )


def _from_any_peer(
    rank: int,
    others: Sequence[int],
    step: int,
    snapshots: _Snapshots,
    replicas: _Replicas,
    endpoints: Mapping[str, Endpoint],
) -> Source | None:
    """Returns the source of a rank that returns to those that hold all that it held."""
    found = [(other, *snapshots[other, step], SlotKind.SNAPSHOT) for other in others if (other, step) in snapshots]
    whole = ((other, held) for other in others for held in replicas.get((other, step), ()) if not held[1].peer_sets)
    found += [(other, slot.generation, node_id, SlotKind.REPLICA) for other, (node_id, slot) in whole]
    if not found:
        return None
    peers = tuple(
        Peer(rank=other, slot_generation=made, endpoint=endpoints[node_id], kind=kind) for other, made, node_id, kind in found
    )
    return Source(rank=rank, kind=SourceKind.PEER, slot_generation=peers[0].slot_generation, peers=peers)


def _contradictions(ranks: Sequence[int], lineage: Sequence[Sent], conflicts: Collection[CopyConflict]) -> str:
    """Returns what is known against these ranks' copies, "" when nothing is."""
    peers: dict[int, set[int]] = {}
    for each in conflicts:
        if each.rank in ranks and usable(each.generation, each.step, lineage):
            peers.setdefault(each.rank, set()).add(each.peer)
    said = [f"rank {rank}'s copies contradict those of rank {', '.join(map(str, sorted(peers[rank])))}" for rank in sorted(peers)]
    return f"{'; '.join(said)} (silent corruption)" if said else ""
