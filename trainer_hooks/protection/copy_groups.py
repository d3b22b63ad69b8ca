"""Which items of a state are copied together: so much that a checksum finds the bytes in the cache when it follows."""

from deadpool.proto.vault.layout import UNIQUE, Layout

GROUP_BYTES = 1 << 20


def groups_of(layout: Layout, group_bytes: int = GROUP_BYTES) -> list[tuple[int, int]]:
    """Returns ranges of items in order, of at most about `group_bytes` unless a single item has more; all of a group are
    unique, or none is.
    """
    groups: list[tuple[int, int]] = []
    begin, size = 0, 0
    for index, item in enumerate(layout.items):
        parts_from_last = index > begin and (item.peers == UNIQUE) != (layout.items[begin].peers == UNIQUE)
        if index > begin and (parts_from_last or size + item.nbytes > group_bytes):
            groups.append((begin, index))
            begin, size = index, 0
        size += item.nbytes
    if begin < len(layout.items):
        groups.append((begin, len(layout.items)))
    return groups
