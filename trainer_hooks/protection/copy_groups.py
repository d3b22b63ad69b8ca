"""Which items of a state are copied together: so much that a checksum finds the bytes in the cache when it follows."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from deadpool.proto.vault.layout import UNIQUE, Item, Layout

GROUP_BYTES = 1 << 20
SMALL_BYTES = 8 << 10  # an item up to this size takes longer to address than to copy
SMALL_ITEMS_MAX = 512  # of a group: with what lies between them, as much as the kernel takes in one call (gather.py)

_last: list[tuple[Layout, int, list["CopyGroup"]]] = []


@dataclass(frozen=True, kw_only=True)
class CopyGroup:
    """Items [first, last) of a layout, bytes [begin, end) of its data. All of them are unique, or none; all small, or none."""

    first: int
    last: int
    begin: int
    end: int
    unique: bool
    small: bool
    items: tuple[Item, ...]

    @cached_property
    def slices(self) -> list[slice]:
        """Returns where each item's bytes are in the data."""
        return [slice(item.offset, item.offset + item.nbytes) for item in self.items]

    @cached_property
    def sizes(self) -> list[int]:
        return [item.nbytes for item in self.items]

    @cached_property
    def nbytes(self) -> int:
        return sum(self.sizes)


def is_small(nbytes: int) -> bool:
    return nbytes <= SMALL_BYTES


def groups_of(layout: Layout, group_bytes: int = GROUP_BYTES) -> list[CopyGroup]:
    """Returns all items in groups, in order, of at most about `group_bytes` unless a single item has more.

    Kept for the two layouts asked last: a generation's, and that of its first states.
    """
    for known, known_bytes, groups in _last:
        if known is layout and known_bytes == group_bytes:
            return groups
    _last[:] = [*_last[-1:], (layout, group_bytes, [*_groups(layout, group_bytes)])]
    return _last[-1][2]


def _groups(layout: Layout, group_bytes: int) -> Iterator[CopyGroup]:
    begin, size = 0, 0
    for index, item in enumerate(layout.items):
        if index > begin:
            first = layout.items[begin]
            other_kind = (item.peers == UNIQUE, is_small(item.nbytes)) != (first.peers == UNIQUE, is_small(first.nbytes))
            full = is_small(item.nbytes) and index - begin == SMALL_ITEMS_MAX
            if other_kind or full or size + item.nbytes > group_bytes:
                yield _group(layout, begin, index)
                begin, size = index, 0
        size += item.nbytes
    if begin < len(layout.items):
        yield _group(layout, begin, len(layout.items))


def _group(layout: Layout, first: int, last: int) -> CopyGroup:
    items = layout.items[first:last]
    return CopyGroup(
        first=first,
        last=last,
        begin=items[0].offset,
        end=items[-1].offset + items[-1].nbytes,
        unique=items[0].peers == UNIQUE,
        small=is_small(items[0].nbytes),
        items=items,
    )
