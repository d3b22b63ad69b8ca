"""deadpool logs: a rank's files in order, and nothing twice or left out when they are turned over or renamed meanwhile."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from deadpool.agent.logs.writer import LogFile, LogWriter
from deadpool.cli import main
from deadpool.cli.commands.logs import RankOutput, last_lines


def test_all_generations_on_all_nodes_in_order(tmp_path: Path) -> None:
    for name, text in (
        ("node1/rank-3-gen2.log", "second\n"), ("node0/rank-3-gen10.log", "third\n"), ("node0/rank-3-gen1.log", "first\n"),
        ("node0/rank-33-gen1.log", "another's\n"), ("node0/rank-3-gen1.error.json", "{}"),
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    output = RankOutput(tmp_path, 3)
    assert output.new() == b"first\nsecond\nthird\n"
    assert output.new() == b""


def test_files_that_are_turned_over_and_renamed(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "node0" / "standin-4.log", bytes_max=40)
    output = RankOutput(tmp_path, 0)
    file.write(b"before it had a rank\n")
    assert output.new() == b""
    file.rename(tmp_path / "node0" / "rank-0-gen2.log")
    assert output.new() == b"before it had a rank\n"
    seen = b""
    for number in range(20):
        file.write(b"line %02d\n" % number)
        if number % 3 == 0:
            seen += output.new()
    seen += output.new()
    assert seen == b"".join(b"line %02d\n" % number for number in range(20))
    assert sorted(path.name for path in (tmp_path / "node0").iterdir()) == ["rank-0-gen2.log", "rank-0-gen2.log.1"]
    assert all(path.stat().st_size <= 40 for path in (tmp_path / "node0").iterdir())
    file.close()


def test_a_name_that_is_taken_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "taken.log").write_text("an earlier life\n")
    file = LogFile(tmp_path / "standin.log", bytes_max=1000)
    file.rename(tmp_path / "taken.log")
    file.write(b"new\n")
    file.close()
    assert (tmp_path / "taken.log").read_text() == "an earlier life\n"
    assert (tmp_path / "standin.log").read_text() == "new\n"


def test_last_lines() -> None:
    assert last_lines(b"a\nb\nc", 2) == b"b\nc"
    assert last_lines(b"a\nb\n", 0) == b"a\nb\n"


def test_a_rank_that_has_no_log(tmp_path: Path) -> None:
    assert main.run(["logs", "7", "--log-dir", str(tmp_path)]) == 2


def test_a_file_that_cannot_be_opened_is_tried_again_and_no_other_file_is_written_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / "node0"
    folder.write_text("in the way")
    lost = b"[deadpool: 1 pieces of output lost]\n"
    file = LogFile(folder / "standin.log", bytes_max=len(lost) + 10)
    with pytest.raises(OSError, match="exists"):
        file.write(b"lost")
    file.rename(folder / "rank-3.log")
    folder.unlink()
    file.write(b"123456789")
    assert (folder / "rank-3.log").read_bytes() == lost + b"123456789"
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError):
        file.write(b"turned over")
    with (tmp_path / "another").open("wb") as another:  # it may get the number that is free now
        file.write(b"again")
        another.flush()
    file.close()
    assert (folder / "rank-3.log").read_bytes() == lost + b"again"
    assert (tmp_path / "another").read_bytes() == b""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs root, to mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_what_finds_the_disk_full_is_lost_and_that_is_said_once_there_is_room(small_disk: Path) -> None:
    """The job goes on: its output is read, and thrown away."""
    (small_disk / "ballast").write_bytes(bytes(60 << 10))
    writer, file = LogWriter("test"), LogFile(small_disk / "rank-0.log", bytes_max=1 << 20)
    for _ in range(3):
        writer.write(file.write, b"x" * (32 << 10))
    writer.close(20.0)
    assert "No space left" in writer.problem
    (small_disk / "ballast").unlink()
    writer = LogWriter("test")
    writer.write(file.write, b"and on it goes\n")
    writer.write(file.close, b"")
    writer.close(20.0)
    assert writer.problem == ""
    assert file.path.read_bytes().endswith(b"[deadpool: 3 pieces of output lost]\nand on it goes\n")
