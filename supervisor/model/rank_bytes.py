"""A set of ranks that may be nearly all there are, and is made in the way of orders: one byte for each rank of the job."""

from collections.abc import Iterable, Iterator, MutableSet


class RankBytes(MutableSet[int]):
    """`world_size`: ranks of the job; `ranks`: those that are in it."""

    __slots__ = ("_count", "_in")

    def __init__(self, world_size: int, ranks: Iterable[int] = ()) -> None:
        self._in = bytearray(world_size)
        self._count = 0
        for rank in ranks:
            self.add(rank)

    @classmethod
    def all(cls, world_size: int) -> "RankBytes":
        found = cls(0)
        found._in, found._count = bytearray(b"\x01") * world_size, world_size
        return found

    def copy(self) -> "RankBytes":
        found = RankBytes(0)
        found._in, found._count = self._in.copy(), self._count
        return found

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, int) and 0 <= rank < len(self._in) and self._in[rank] == 1

    def __iter__(self) -> Iterator[int]:
        at = self._in.find(1)
        while at >= 0:
            yield at
            at = self._in.find(1, at + 1)

    def __len__(self) -> int:
        return self._count

    def add(self, value: int) -> None:
        self._count += 1 - self._in[value]
        self._in[value] = 1

    def discard(self, value: int) -> None:
        if self._in[value]:
            self._in[value] = 0
            self._count -= 1

    @classmethod
    def _from_iterable(cls, it: Iterable[int]) -> set[int]:  # type: ignore[override]
        """What is left of it is small."""
        return set(it)

    def __repr__(self) -> str:
        return repr(set(self))
