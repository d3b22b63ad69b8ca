"""A simulated node's memory: what is sealed in its slots, and what its agent reports of it."""

from collections.abc import Iterator
from dataclasses import dataclass

from sim.truth import Truth

from deadpool.proto.messages import RankSet, Slot, SlotKind
from deadpool.proto.vault.slots import StateId


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sealed slot's content. `bad`: its bytes have changed since; whoever reads it finds that out."""

    state: StateId
    content: int
    peers: tuple[int, ...] = ()
    bad: bool = False


Slots = list[Sealed | None]  # two; None: empty or torn


class SimVault:
    """`held`: by kind and rank. `lost`: with its node; nobody reads it any more."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self.held: dict[tuple[SlotKind, int], Slots] = {}
        self.lost = False

    def slots(self, kind: SlotKind, rank: int) -> Slots:
        return self.held.setdefault((kind, rank), [None, None])

    def content(self, kind: SlotKind, rank: int, state: StateId) -> int | None:
        """Returns the content of that sealed state; None when it is not here (any more), or its copy is bad."""
        slots = self.slots(kind, rank) if not self.lost else []
        for index, slot in enumerate(slots):
            if slot is not None and slot.state == state and slot.bad:
                slots[index] = None
                return None
        return next((slot.content for slot in slots if slot is not None and slot.state == state), None)

    def peers(self, kind: SlotKind, rank: int, state: StateId) -> tuple[int, ...]:
        """Returns who holds the same as well, as that sealed state says; () when nobody does, or it is not here."""
        return next((slot.peers for slot in self.slots(kind, rank) if slot is not None and slot.state == state), ())

    def report(self) -> Iterator[Slot]:
        for (kind, rank), slots in self.held.items():
            for slot in slots:
                if slot is not None:
                    sets = (RankSet(ranks=slot.peers, digest=self._digest(rank, slot)),) if slot.peers else ()
                    generation, step = slot.state.generation, slot.state.step
                    yield Slot(kind=kind, rank=rank, generation=generation, step=step, peer_sets=sets, unique=not sets)

    def drop_snapshots(self) -> None:
        self.held = {(kind, rank): slots for (kind, rank), slots in self.held.items() if kind is not SlotKind.SNAPSHOT}

    def lose(self) -> None:
        self.lost, self.held = True, {}

    def _digest(self, rank: int, sealed: Sealed) -> int:
        """Returns what stands for the bytes that the rank holds together with others in that state."""
        return hash((sealed.content, rank)) if self._truth.are_apart(sealed.state.step) else sealed.content
