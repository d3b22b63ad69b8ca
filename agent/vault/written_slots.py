"""Replica slots that stay mapped from one replica to the next: a mapping of its own for each would fault every page again."""

from pathlib import Path

from deadpool.host.errors import SnapshotError
from deadpool.host.prefault import prefault
from deadpool.proto.vault.layout import SlotFile


class WrittenSlots:
    """The slots that this process writes. Calls that concern the same path exclude each other (the caller sees to it).

    A mapping is never closed while it may be in use: it goes with the last reference to it.
    """

    def __init__(self) -> None:
        self._known: dict[Path, SlotFile] = {}
        self._turns: dict[Path, int] = {}

    def of(self, path: Path) -> SlotFile:
        """Returns the slot as it is now: one that was replaced, or has grown, is mapped again. SnapshotError: it cannot be."""
        try:
            slot = self._known.get(path)
            if slot is None or not slot.is_current():
                slot = self._known[path] = SlotFile(path)
                prefault(slot.map)
        except OSError as error:
            raise SnapshotError(f"{path.name} cannot be opened: {error.strerror}") from error
        return slot

    def turn(self, path: Path) -> int:
        """Returns how many states were to come into this slot before (ArrivingItems.check)."""
        turn = self._turns.get(path, 0)
        self._turns[path] = turn + 1
        return turn

    def forget(self, path: Path) -> None:
        """The file is to be replaced: memory of one that is removed would stay taken as long as it is mapped."""
        self._known.pop(path, None)

    def clear(self) -> None:
        self._known.clear()
