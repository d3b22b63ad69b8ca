"""What a rank holds of the training state, and who holds the same, in a few rows: from the tables of a slot.

Agents answer with it what people ask of a running job (`deadpool status --state`); a rank says it of itself (guard.describe()).
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Self

from deadpool.proto.messages import SlotKind
from deadpool.proto.vault.layout import UNIQUE, Header, Layout

_GROUPS = {
    "model": "parameters",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer": "optimizer state",
}  # by the first word of an item's key
_METADATA = "extras and metadata"  # random generators, the structure of models and optimizers: all that is no item


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Some items of one group. `ranks`: the other ranks that hold the same bytes and are relied on for them; (): it is unique,
    and travels to the holders of the rank's replicas.
    """

    group: str
    items: int
    size_bytes: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotHoldings:
    """What a sealed slot of a vault says of its rank's state."""

    kind: SlotKind
    rank: int
    generation: int
    step: int
    holdings: tuple[Holding, ...]

    @classmethod
    def of(cls, kind: SlotKind, header: Header, layout: Layout) -> Self:
        found = holdings(layout, header.meta_bytes)
        return cls(kind=kind, rank=header.rank, generation=header.generation, step=header.step, holdings=found)


def holdings(layout: Layout, meta_bytes: int) -> tuple[Holding, ...]:
    """Returns what a state with this layout holds: a row for each group and set of ranks."""
    rows: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for item in layout.items:
        ranks = () if item.peers == UNIQUE else layout.peer_sets[item.peers]
        word = item.key.partition("/")[0]
        rows.setdefault((_GROUPS.get(word, word), ranks), []).append(item.nbytes)
    rows[_METADATA, ()] = [meta_bytes]
    order = [*_GROUPS.values(), _METADATA]
    return tuple(
        Holding(group=group, items=len(rows[group, ranks]), size_bytes=sum(rows[group, ranks]), ranks=ranks)
        for group, ranks in sorted(rows, key=lambda row: (order.index(row[0]) if row[0] in order else len(order), row))
    )


def ranks_text(ranks: Iterable[int]) -> str:
    """Returns the ranks in order, neighbours joined: 0-3, 6."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if run[1:] else str(run[0]) for run in runs)


def to_json(slots: Sequence[SlotHoldings]) -> bytes:
    return json.dumps([asdict(slot) for slot in slots]).encode()


def from_json(data: bytes) -> tuple[SlotHoldings, ...]:
    """Returns what `to_json` was given; ValueError, KeyError or TypeError when it is something else."""
    return tuple(
        SlotHoldings(
            kind=SlotKind(slot["kind"]),
            rank=int(slot["rank"]),
            generation=int(slot["generation"]),
            step=int(slot["step"]),
            holdings=tuple(
                Holding(group=row["group"], items=row["items"], size_bytes=row["size_bytes"], ranks=tuple(row["ranks"]))
                for row in slot["holdings"]
            ),
        )
        for slot in json.loads(data)
    )
