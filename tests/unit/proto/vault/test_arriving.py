"""A replica that comes in pieces: it is believed when every item has come whole, or lies there already, and never else."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadpool.host.errors import SnapshotError
from deadpool.proto.vault.arriving import ArrivingItems
from deadpool.proto.vault.layout import UNIQUE, Item, Layout, Tables, checksum

SIZES = st.lists(st.integers(0, 300), min_size=1, max_size=8)


def layout_of(sizes: list[int], shared: set[int]) -> Layout:
    items = [
        Item(key=str(n), offset=0, nbytes=size, dtype="uint8", shape=(size,), peers=0 if n in shared else UNIQUE)
        for n, size in enumerate(sizes)
    ]
    return Layout.place(items, [(1,)]).of_replica()


def state(layout: Layout, data: bytes) -> Tables:
    sums = tuple(checksum(data[i.offset : i.offset + i.nbytes]) if i.peers == UNIQUE else 7 for i in layout.items)
    return Tables(layout=layout, meta=b"", checksums=sums)


def unique(layout: Layout) -> list[Item]:
    return [item for item in layout.items if item.peers == UNIQUE and item.nbytes]


def pieces(chance: random.Random, items: list[Item]) -> Iterator[tuple[int, int]]:
    """Yields ranges that cover these items, cut anywhere: neighbours may come together, with what lies between them."""
    runs: list[tuple[int, int]] = []
    for item in items:
        begin, end = item.offset, item.offset + item.nbytes
        if runs and begin - runs[-1][1] < 64 and chance.random() < 0.5:
            runs[-1] = runs[-1][0], end
        else:
            runs.append((begin, end))
    for begin, end in runs:
        at = begin
        while at < end:
            upto = min(end, at + chance.randint(1, 200))
            yield at, upto
            at = upto


@given(SIZES, st.sets(st.integers(0, 7)), st.sets(st.integers(0, 7)), st.randoms(use_true_random=False))
def test_what_has_come_or_lies_there_is_believed_to_the_bit(
    sizes: list[int], shared: set[int], left: set[int], chance: random.Random
) -> None:
    layout = layout_of(sizes, shared)
    memory = bytearray(chance.randbytes(layout.unique_bytes))
    held = state(layout, bytes(memory))
    new = bytearray(chance.randbytes(layout.unique_bytes))
    for item in unique(layout):
        if int(item.key) in left:
            new[item.offset : item.offset + item.nbytes] = memory[item.offset : item.offset + item.nbytes]
    tables = state(layout, bytes(new))
    arriving = ArrivingItems(layout, memoryview(memory))
    for begin, end in pieces(chance, [item for item in unique(layout) if int(item.key) not in left]):
        memory[begin:end] = new[begin:end]
        arriving.landed(begin, end)
    arriving.check(tables, held)
    for item in unique(layout):
        assert memory[item.offset : item.offset + item.nbytes] == new[item.offset : item.offset + item.nbytes]
    if any(int(item.key) in left for item in unique(layout)):
        with pytest.raises(SnapshotError, match="is not held"):
            arriving.check(tables, None)


@given(SIZES, st.randoms(use_true_random=False), st.sampled_from(["bit", "left out", "in part", "held another"]))
def test_anything_else_is_refused(sizes: list[int], chance: random.Random, what: str) -> None:
    layout = layout_of([*sizes, 10], set())
    data = chance.randbytes(layout.unique_bytes)
    tables, items = state(layout, data), unique(layout)
    victim = chance.choice(items)
    memory = bytearray(data)
    arriving, held = ArrivingItems(layout, memoryview(memory)), None
    coming = items
    if what == "bit":
        memory[victim.offset + chance.randrange(victim.nbytes)] ^= 1 << chance.randrange(8)
    elif what in ("left out", "held another"):
        coming = [item for item in items if item is not victim]
        if what == "held another":
            other = bytearray(data)
            other[victim.offset] ^= 1
            held = state(layout, bytes(other))

    def believed() -> None:
        for item in coming:
            size = item.nbytes if item is not victim or what != "in part" else item.nbytes - 1
            if size:
                arriving.landed(item.offset, item.offset + size)
        arriving.check(tables, held)

    with pytest.raises(SnapshotError):
        believed()


def test_bytes_within_an_item_that_has_not_begun_to_come_are_refused() -> None:
    layout = layout_of([100, 100], set())
    arriving = ArrivingItems(layout, memoryview(bytes(256)))
    with pytest.raises(SnapshotError, match="does not begin at 99"):
        arriving.landed(99, 100)


def test_an_item_that_has_come_in_part_does_not_count_as_left_though_it_was_held() -> None:
    layout = layout_of([100, 100], set())
    data = bytes(range(100)) * 3
    tables = state(layout, data[: layout.unique_bytes])
    arriving = ArrivingItems(layout, memoryview(data))
    arriving.landed(0, 50)
    with pytest.raises(SnapshotError, match="in part"):
        arriving.check(tables, tables)
    with pytest.raises(SnapshotError, match="in part"):
        arriving.landed(128, 228)
