"""Dead agents' vaults are removed, whatever of them is left, and nothing else is."""

from pathlib import Path

from deadpool.host.vault_folders import remove_leftovers, remove_vault, vault_folder


def leave_vault(root: Path, node_id: str, *, lock: bool = True) -> Path:
    """Makes what an agent that was killed leaves; without the lock: one that was removing it."""
    folder = vault_folder(root, "job", node_id)
    folder.mkdir()
    if lock:
        (folder / "lock").touch()
        (folder / "snapshot-0-a").touch()
    return folder


def test_the_next_agent_removes_all_that_are_nobodys(tmp_path: Path) -> None:
    leave_vault(tmp_path, "node0")
    leave_vault(tmp_path, "node1")
    stranger = tmp_path / "deadpool-of-someone-else"  # no lock: not a vault
    stranger.mkdir()
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [stranger]


def test_who_started_an_agent_removes_what_it_left(tmp_path: Path) -> None:
    half_removed, never_there = leave_vault(tmp_path, "node1", lock=False), vault_folder(tmp_path, "job", "none")
    for folder in (leave_vault(tmp_path, "node0"), half_removed, never_there):
        remove_vault(folder)
    assert list(tmp_path.iterdir()) == []
