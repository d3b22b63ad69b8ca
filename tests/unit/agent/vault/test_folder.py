"""The vault: reserved in full or refused with the sum, reports what is whole, and never outlives its agent for long."""

import os
from pathlib import Path

import pytest

from deadpool.agent.vault.folder import Vault
from deadpool.host.disk import free_bytes
from deadpool.host.errors import ConfigError
from deadpool.host.vault_folders import remove_vault, vault_folder
from deadpool.proto.messages import RankSet, Slot, SlotKind
from deadpool.proto.vault.layout import Item, Layout, SlotFile, Tables, checksum, slot_capacity, slot_path
from deadpool.proto.vault.together import HeldTogether

DATA = b"x" * 100
LAYOUT = Layout.place([Item(key="w", offset=0, nbytes=100, dtype="uint8", shape=(100,), peers=0)], [(1,)])


def seal(vault: Vault, name: str, step: int, data: bytes = DATA) -> Path:
    """Seals a snapshot of rank 0 with one replicated item, as its rank would."""
    layout = LAYOUT
    tables = Tables(layout=layout, meta=b"", checksums=(checksum(data),))
    slot_bytes, data_offset = slot_capacity(layout.data_bytes, 1, 0)
    vault.reserve_snapshots(0, slot_bytes, 0)
    slot = SlotFile(slot_path(vault.folder, SlotKind.SNAPSHOT, 0, name))
    slot.view[data_offset : data_offset + 100] = data
    header = tables.header(tables.rest(), rank=0, generation=1, step=step, data_offset=data_offset)
    slot.seal(header, layout.to_bytes(), tables.rest())
    slot.close()
    return slot.path


def snapshot(step: int, data: bytes = DATA) -> Slot:
    """Returns what is reported of it; rank 1, which says the same of the same bytes, gives the digest."""
    layout = Layout.place([Item(key="w", offset=0, nbytes=100, dtype="uint8", shape=(100,), peers=0)], [(0,)])
    together = HeldTogether(1).of(Tables(layout=layout, meta=b"", checksums=(checksum(data),)))
    sets = (RankSet(ranks=(1,), digest=together[0, 1] >> 1),)
    return Slot(kind=SlotKind.SNAPSHOT, rank=0, generation=1, step=step, peer_sets=sets)


def test_what_is_sealed_and_whole_is_reported(tmp_path: Path) -> None:
    vault = Vault.create(tmp_path, "job", "node0")
    assert vault.slots() == ()
    first = seal(vault, "a", step=4)
    second = seal(vault, "b", step=5)
    assert vault.slots() == vault.slots() == (snapshot(4), snapshot(5))
    slot = SlotFile(first)
    slot.unseal()
    slot.close()
    assert vault.slots() == (snapshot(5),)
    with second.open("r+b") as file:
        file.seek(4100)  # in the tables
        file.write(b"?")
    assert Vault(vault.folder, os.dup(0)).slots() == ()
    seal(vault, "a", step=6)
    assert snapshot(6) in vault.slots()
    seal(vault, "a", step=6, data=b"y" * 100)  # what is reported says whether those who hold it together have parted
    assert snapshot(6, b"y" * 100) in vault.slots()
    assert snapshot(6) != snapshot(6, b"y" * 100)
    vault.drop_snapshots()
    assert vault.slots() == ()
    vault.remove()
    assert list(tmp_path.iterdir()) == []


def test_too_little_space_is_one_line_with_the_sum_and_what_is_free(tmp_path: Path) -> None:
    vault = Vault.create(tmp_path, "job", "node0")
    size = free_bytes(tmp_path) // 2 + (1 << 20)
    with pytest.raises(ConfigError, match=rf"rank 3 needs {2 * size + 500 + (64 << 10)} bytes .* are free") as caught:
        vault.reserve_snapshots(3, size, 500)
    assert "\n" not in str(caught.value)
    assert [path.name for path in vault.folder.iterdir()] == ["lock"]
    vault.reserve_snapshots(3, 8192, 0)
    inode = slot_path(vault.folder, SlotKind.SNAPSHOT, 3, "a").stat().st_ino
    vault.reserve_snapshots(3, 8192, 10 * size)  # a process that takes the rank over finds its slots as they are
    assert slot_path(vault.folder, SlotKind.SNAPSHOT, 3, "a").stat().st_ino == inode
    vault.remove()


def test_slots_made_beforehand_go_with_whoever_they_were_made_for(tmp_path: Path) -> None:
    vault = Vault.create(tmp_path, "job", "node0")
    seal(vault, "a", step=4)  # of rank 0, which has no process just now: the other slot is empty, and stays
    for rank in (3, 7):
        vault.reserve_snapshots(rank, 8192, 0)
    assert vault.snapshot_bytes(7) == 2 * 8192
    vault.drop_empty_snapshots(used={3})
    left = {path.name for path in vault.folder.iterdir()} - {"lock"}
    assert left == {f"snapshot-{rank}-{name}" for rank in (0, 3) for name in "ab"}
    assert vault.snapshot_bytes(7) == 0
    vault.remove()


def test_a_live_agents_vault_is_its_own(tmp_path: Path) -> None:
    alive = Vault.create(tmp_path, "job", "node0")
    with pytest.raises(ConfigError, match="in use by another agent"):
        Vault.create(tmp_path, "job", "node0")
    remove_vault(vault_folder(tmp_path, "job", "node0"))  # a launcher of another job of that name, at its end
    assert (alive.folder / "lock").exists()
    alive.remove()
    Vault.create(tmp_path, "job", "node0").remove()
