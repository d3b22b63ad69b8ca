"""What is unique in a running job's state, and where its copies are: what each vault says in, one line for each group out.

Only what belongs to the newest commit that the supervisor knows of, or to a later state, counts: that of a node which holds
replicas no more, or of a branch that was given up, does not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from deadpool.proto.messages import NO_STEP, SlotKind
from deadpool.proto.messages.status import JobStatus
from deadpool.proto.vault.holdings import Holding, SlotHoldings

NOT_YET = "what is replicated where is not yet known: nothing is committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGroup:
    """Items of one group that the same ranks hold.

    `same`: all these ranks hold the same bytes, `size_bytes` is what each holds; else each has its own, and that is the sum.
    `nodes`: where these ranks' snapshots are. `replicas`: nodes that hold a copy besides.
    """

    group: str
    items: int
    size_bytes: int
    same: bool
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    replicas: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHoldings:
    """`step`: the newest commit; NO_STEP: none is known. `silent`: nodes whose vaults do not answer, and why.

    `missing`: ranks of which no state was found: their slots were being written while they were read, one after the other.
    """

    step: int
    groups: tuple[HeldGroup, ...] = ()
    silent: tuple[str, ...] = ()
    missing: tuple[int, ...] = ()


def job_holdings(status: JobStatus, vaults: Mapping[str, Iterable[SlotHoldings]], silent: Iterable[str] = ()) -> JobHoldings:
    """Returns who holds what. `status` must be older than `vaults`, which are by node."""
    if status.commit_step == NO_STEP:
        return JobHoldings(step=NO_STEP, silent=tuple(silent))
    homes = {rank.rank: node.node_id for node in status.nodes for rank in node.ranks}
    snapshots: dict[int, SlotHoldings] = {}
    replicas: dict[int, set[str]] = {}
    for node_id, slots in vaults.items():
        for slot in slots:
            if slot.step < status.commit_step:
                continue
            if slot.kind is SlotKind.REPLICA:
                replicas.setdefault(slot.rank, set()).add(node_id)
            elif homes.get(slot.rank) == node_id:
                known = snapshots.get(slot.rank)
                if known is None or (slot.generation, slot.step) > (known.generation, known.step):
                    snapshots[slot.rank] = slot
    rows: dict[tuple[str, tuple[int, ...], str, tuple[str, ...]], list[tuple[int, Holding]]] = {}
    for rank, slot in sorted(snapshots.items()):
        for each in slot.holdings:
            where = ("", ()) if each.ranks else (homes[rank], tuple(sorted(replicas.get(rank, ()))))
            rows.setdefault((each.group, tuple(sorted((rank, *each.ranks))) if each.ranks else (), *where), []).append(
                (rank, each)
            )
    groups = [_held(group, together, parts, homes, copies) for (group, together, _, copies), parts in rows.items()]
    order = list(dict.fromkeys(each.group for slot in snapshots.values() for each in slot.holdings))
    groups.sort(key=lambda held: (order.index(held.group), not held.same, held.ranks))
    missing = tuple(sorted(rank for rank, home in homes.items() if home in vaults and rank not in snapshots))
    return JobHoldings(step=status.commit_step, groups=tuple(groups), silent=tuple(silent), missing=missing)


def _held(
    group: str,
    together: tuple[int, ...],
    parts: list[tuple[int, Holding]],
    homes: Mapping[int, str],
    replicas: tuple[str, ...],
) -> HeldGroup:
    ranks = together or tuple(rank for rank, _ in parts)
    of_one = parts[:1] if together else parts
    return HeldGroup(
        group=group,
        items=sum(each.items for _, each in of_one),
        size_bytes=sum(each.size_bytes for _, each in of_one),
        same=bool(together),
        ranks=ranks,
        nodes=tuple(dict.fromkeys(homes[rank] for rank in ranks if rank in homes)),
        replicas=replicas,
    )


def as_plain(holdings: JobHoldings) -> dict[str, Any] | None:
    """Returns what `--json` shows as "state": None while nothing is known."""
    return asdict(holdings) if holdings.step != NO_STEP else None
