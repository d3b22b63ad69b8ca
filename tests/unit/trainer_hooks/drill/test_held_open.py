"""What a process has open for writing, or listens on, and what of it a joiner would have beside its living rank."""

import os
import socket
from pathlib import Path

import pytest

from deadpool.trainer_hooks.drill.held_open import HeldOpen, held_open, held_open_path, shared_by_joiners


def test_files_that_are_written_and_addresses_that_are_listened_on(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    with (
        open(tmp_path / "written", "w") as written,
        open(tmp_path / "appended", "a"),
        open(ours / "log", "w"),
        open(written.name),
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as named,
        socket.create_connection(tcp.getsockname()),
    ):
        named.bind(str(tmp_path / "sock"))
        named.listen()
        port = tcp.getsockname()[1]
        found = held_open(os.getsid(0), [ours])
    assert {path for path in found.writes if path.startswith(str(tmp_path))} == {str(tmp_path / "written")}
    assert {path for path in found.appends if path.startswith(str(tmp_path))} == {str(tmp_path / "appended")}
    assert f"tcp 127.0.0.1:{port}" in found.listens
    assert f"unix {tmp_path / 'sock'}" in found.listens
    assert HeldOpen.from_json(found.to_json()) == found


def test_addresses_as_people_write_them(tmp_path: Path) -> None:
    """A machine without IPv6 has no such sockets to look at."""
    (tmp_path / "self" / "net").mkdir(parents=True)
    process = tmp_path / "7"
    (process / "fd").mkdir(parents=True)
    (process / "fdinfo").mkdir()
    (process / "stat").write_text("7 (a (b) c) S 1 7 7 0")
    for number, inode in enumerate((11, 12, 13)):
        (process / "fd" / str(number)).symlink_to(f"socket:[{inode}]")
        (process / "fdinfo" / str(number)).write_text("pos:\t0\nflags:\t02\n")
    head = "sl local_address rem_address st\n 0: "
    (tmp_path / "self" / "net" / "tcp6").write_text(f"{head}00000000000000000000000001000000:1F90 0:0 0A 0:0 00:0 0 0 0 11 1\n")
    (tmp_path / "self" / "net" / "udp").write_text(f"{head}0100007F:0035 0:0 07 0:0 00:0 0 0 0 12 1\n")
    (tmp_path / "self" / "net" / "tcp").write_text(f"{head}00000000:1F91 0:0 01 0:0 00:0 0 0 0 13 1\n")
    assert held_open(7, [], proc=tmp_path).listens == ("tcp [::1]:8080", "udp 127.0.0.1:53")


def put(log_dir: Path, held: HeldOpen, *, generation: int, joins: bool) -> None:
    path = held_open_path(log_dir, generation=generation, rank=0, joins=joins)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(held.to_json())


LIVING = HeldOpen(writes=("/run.csv",), appends=("/losses",), listens=("tcp 0.0.0.0:6006", "tcp 127.0.0.1:41234"))


@pytest.mark.parametrize(
    ("joiner", "shared"),
    [
        (HeldOpen(), []),
        (HeldOpen(writes=("/other.csv",), appends=("/losses",), listens=("tcp 127.0.0.1:50000",)), []),
        (HeldOpen(writes=("/run.csv", "/losses"), listens=("tcp 0.0.0.0:6006",)),
         ["rank 0 writes /run.csv", "rank 0 writes /losses", "rank 0 listens on tcp 0.0.0.0:6006"]),
    ],
)  # fmt: skip
def test_what_a_joiner_shares_with_its_living_rank(tmp_path: Path, joiner: HeldOpen, shared: list[str]) -> None:
    put(tmp_path, LIVING, generation=2, joins=False)
    put(tmp_path, joiner, generation=4, joins=True)
    assert shared_by_joiners(tmp_path, {4: 2, 5: 2}, 2) == (True, shared)
    assert shared_by_joiners(tmp_path, {5: 2}, 2) == (False, [])
