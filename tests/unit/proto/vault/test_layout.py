"""The slot's format: what is sealed comes back bit for bit; what is torn, cut or changed is never taken for a state."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deadpool.host.errors import ConfigError, SnapshotError
from deadpool.proto.messages import SlotKind
from deadpool.proto.vault import layout
from deadpool.proto.vault.layout import (
    ALIGN_BYTES,
    HEADER_BYTES,
    UNIQUE,
    Header,
    Item,
    Layout,
    SlotFile,
    Tables,
    checksum,
    replica_of,
    reserve,
    slot_capacity,
    slot_path,
)

ITEMS = st.lists(
    st.builds(
        Item,
        key=st.text(st.characters(codec="utf-8"), max_size=8),
        offset=st.just(0),
        nbytes=st.integers(0, 5000),
        dtype=st.sampled_from(["float32", "bfloat16", "uint8"]),
        shape=st.lists(st.integers(0, 64), max_size=3).map(tuple),
        peers=st.integers(UNIQUE, 1),
    ),
    max_size=12,
)
HEADERS = st.builds(
    Header,
    rank=st.integers(0, 2**31 - 1),
    generation=st.integers(0, 2**63 - 1),
    step=st.integers(-1, 2**63 - 1),
    **{
        name: st.integers(0, 2**64 - 1)
        for name in (
            *("layout_bytes", "meta_bytes", "items", "data_offset", "data_bytes", "unique_bytes"),
            *("layout_checksum", "tables_checksum"),
        )
    },
)


def slot(item_bytes: bytes = b"unique--", *, step: int = 5) -> tuple[Header, bytes, bytes]:
    """Returns header, tables and data of a state with one unique item and one that rank 1 holds as well."""
    shared = b"shared" * 100
    layout = Layout.place(
        [
            Item(key="w", offset=0, nbytes=len(shared), dtype="uint8", shape=(len(shared),), peers=0),
            Item(key="m", offset=0, nbytes=len(item_bytes), dtype="uint8", shape=(len(item_bytes),)),
        ],
        [(1,)],
    )
    data = bytearray(layout.data_bytes)
    for item, value in zip(layout.items, (item_bytes, shared), strict=True):
        data[item.offset : item.offset + item.nbytes] = value
    tables = Tables(layout=layout, meta=b"meta", checksums=(checksum(item_bytes), checksum(shared)))
    rest = tables.rest()
    header = tables.header(rest, rank=3, generation=2, step=step, data_offset=8192)
    return header, layout.to_bytes() + rest, bytes(data)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SlotFile]:
    path = slot_path(tmp_path, SlotKind.SNAPSHOT, 3, "a")
    reserve(path, 16384)
    slot_file = SlotFile(path)
    yield slot_file
    slot_file.close()


def write(file: SlotFile, header: Header, tables: bytes, data: bytes) -> None:
    file.unseal()
    file.view[header.data_offset : header.data_offset + len(data)] = data
    file.seal(header, tables[: header.layout_bytes], tables[header.layout_bytes :])


@given(ITEMS)
def test_unique_items_come_first_aligned_and_without_overlap(items: list[Item]) -> None:
    layout = Layout.place(items, [(1,), (2, 3)])
    assert sorted(item.key for item in layout.items) == sorted(item.key for item in items)
    end = 0
    for item in layout.items:
        assert item.offset % ALIGN_BYTES == 0
        assert item.offset >= end
        end = item.offset + item.nbytes
        assert (item.offset + item.nbytes <= layout.unique_bytes) or item.peers != UNIQUE
        assert item.offset >= layout.unique_bytes or item.peers == UNIQUE or item.nbytes == 0
    assert layout.data_bytes >= end


@given(ITEMS, st.data())
def test_when_other_items_become_unique_no_data_moves_and_the_replica_is_what_they_are_one_after_the_other(
    items: list[Item], draw: st.DataObject
) -> None:
    before = Layout.place({item.key: item for item in items}.values(), [(1,), (2, 3)])
    peers = {item.key: draw.draw(st.sampled_from([(), (1,), (4, 5)])) for item in before.items}
    layout = before.with_peers(peers)
    assert [(item.key, item.offset) for item in layout.items] == [(item.key, item.offset) for item in before.items]
    assert {item.key: layout.peer_sets[item.peers] if item.peers != UNIQUE else () for item in layout.items} == peers
    replica = layout.of_replica()
    data = bytes(index // ALIGN_BYTES % 251 for index in range(layout.data_bytes))
    sent = b"".join(data[begin:end] for begin, end in layout.unique_runs())
    assert len(sent) == layout.unique_bytes == replica.unique_bytes
    for here, there in zip(layout.items, replica.items, strict=True):
        assert (here.key, here.peers) == (there.key, there.peers)
        if here.peers == UNIQUE:
            assert sent[there.offset : there.offset + there.nbytes] == data[here.offset : here.offset + here.nbytes]
        else:
            assert there.offset >= replica.unique_bytes or not there.nbytes


@given(ITEMS)
def test_a_layout_survives_its_bytes(items: list[Item]) -> None:
    layout = Layout.place(items, [(1,), (2, 3)])
    assert Layout.from_bytes(layout.to_bytes()) == layout


@given(HEADERS)
def test_a_header_survives_its_page(header: Header) -> None:
    page = header.to_page()
    assert len(page) == HEADER_BYTES
    assert Header.from_page(page) == header


@settings(max_examples=300)
@given(HEADERS, st.integers(0, 103), st.integers(1, 255))
def test_a_header_with_any_byte_changed_is_none(header: Header, at: int, change: int) -> None:
    page = bytearray(header.to_page())
    page[at] ^= change
    assert Header.from_page(bytes(page)) is None


@given(st.binary(max_size=200))
def test_what_is_no_header_is_none(page: bytes) -> None:
    assert Header.from_page(page) is None


def test_the_changed_byte_test_covers_the_whole_header() -> None:
    assert layout._FIELDS.size == 104


def test_a_sealed_slot_comes_back(file: SlotFile) -> None:
    header, tables, data = slot()
    write(file, header, tables, data)
    found = file.header()
    assert found == header
    back = file.tables(found)
    assert back.meta == b"meta"
    for item, expected in zip(back.layout.items, back.checksums, strict=True):
        assert checksum(file.data(found)[item.offset : item.offset + item.nbytes]) == expected


def test_an_empty_a_torn_and_a_half_written_slot_hold_nothing(file: SlotFile) -> None:
    assert file.header() is None
    header, tables, data = slot()
    write(file, header, tables, data)
    file.unseal()
    assert file.header() is None
    newer, _, _ = slot(step=6)
    file.view[8 + 4 : 104] = newer.to_page()[8 + 4 : 104]  # its writer died before the last four bytes
    assert file.header() is None


def test_a_replica_s_header_is_the_snapshot_s_with_the_unique_part_only(file: SlotFile) -> None:
    header, raw, data = slot()
    replica = replica_of(header, Tables.from_bytes(header, raw).layout)
    write(file, replica, raw, data[: replica.data_bytes])
    found = file.header()
    assert found is not None
    assert (found.step, found.data_bytes, found.tables_checksum) == (header.step, header.unique_bytes, header.tables_checksum)
    assert bytes(file.data(found)[:8]) == b"unique--"


@pytest.mark.parametrize("part", ["layout", "rest"])
def test_changed_tables_are_refused(file: SlotFile, part: str) -> None:
    header, tables, data = slot()
    write(file, header, tables, data)
    file.view[HEADER_BYTES + 3 + (header.layout_bytes if part == "rest" else 0)] ^= 1
    with pytest.raises(SnapshotError, match="rank 3 step 5"):
        file.tables(header)


def test_a_layout_that_is_there_is_left_and_still_has_to_be_the_header_s(file: SlotFile) -> None:
    header, tables, data = slot()
    write(file, header, tables, data)
    newer, newer_tables, _ = slot(step=6)
    assert newer.has_layout_of(header)
    file.unseal()
    file.seal(newer, None, newer_tables[newer.layout_bytes :])
    assert file.tables(newer) == Tables.from_bytes(newer, newer_tables)
    other, other_tables, _ = slot(item_bytes=b"larger" * 9)
    assert not other.has_layout_of(newer)
    assert not other.has_layout_of(None)
    file.unseal()
    file.seal(other, None, other_tables[other.layout_bytes :])
    with pytest.raises(SnapshotError, match="layout differs"):
        file.tables(other)


def test_a_state_that_does_not_fit_is_refused_and_leaves_the_slot_torn(file: SlotFile) -> None:
    header, tables, data = slot()
    write(file, header, tables, data)
    file.unseal()
    for bad in (replace(header, data_bytes=16384), replace(header, data_offset=HEADER_BYTES + len(tables) - 1)):
        with pytest.raises(SnapshotError, match="do not fit"):
            file.seal(bad, tables[: header.layout_bytes], tables[header.layout_bytes :])
    assert file.header() is None


@given(st.integers(0, 10**6), st.integers(0, 1000), st.integers(0, 10**5))
def test_a_slot_has_room_for_what_it_is_made_for(data_bytes: int, items: int, meta_bytes: int) -> None:
    size, offset = slot_capacity(data_bytes, items, meta_bytes)
    assert offset >= HEADER_BYTES + 8 * items + 2 * meta_bytes
    assert size >= offset + data_bytes
    assert size % 4096 == offset % 4096 == 0


def test_reserve_takes_all_memory_at_once_and_keeps_what_is_large_enough(tmp_path: Path) -> None:
    path = tmp_path / "slot"
    reserve(path, 100_000)
    assert path.stat().st_blocks * 512 >= 100_000
    path.write_bytes(b"x" * 100_000)
    reserve(path, 50_000)
    assert path.read_bytes() == b"x" * 100_000
    reserve(path, 200_000)
    assert path.read_bytes() == bytes(200_000)
    assert path.stat().st_mode & 0o777 == 0o600


def test_reserve_says_what_is_needed_and_what_is_free(tmp_path: Path) -> None:
    path = tmp_path / "slot"
    with pytest.raises(ConfigError, match=rf"slot needs {1 << 60} bytes, \d+ are free"):
        reserve(path, 1 << 60)
    assert not path.exists()
