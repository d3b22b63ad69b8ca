"""What a node says when it runs out of something, and when that is over."""

from dataclasses import replace
from pathlib import Path

from deadpool.agent.health.host_pressure import PressureWatch, Usage, read_usage

FINE = Usage(
    memory_share=0.5, memory_free_bytes=8 << 30, shm_share=0.1, shm_free_bytes=4 << 30, files_share=0.1, log_free_bytes=1 << 40
)


def test_each_trouble_is_said_once_and_its_end_once() -> None:
    watch = PressureWatch()
    assert watch.changes(FINE) == []
    full = replace(FINE, memory_share=0.96, memory_free_bytes=300 << 20, log_free_bytes=5 << 20)
    said = {each.kind: each.text for each in watch.changes(full)}
    assert said == {
        "memory": "memory is nearly full: 300 MiB left",
        "log-disk": "the disk of the logs is nearly full: 5 MiB left",
    }
    assert watch.changes(full) == []
    assert watch.changes(replace(full, memory_share=0.93)) == []  # better, not yet good
    assert [(each.kind, each.text) for each in watch.changes(FINE)] == [("memory", ""), ("log-disk", "")]


def test_shared_memory_and_files() -> None:
    watch = PressureWatch()
    assert [each.kind for each in watch.changes(replace(FINE, shm_share=0.97, files_share=0.95))] == ["shm", "files"]


def test_logs_that_cannot_be_written_whatever_the_disk_says(tmp_path: Path) -> None:
    watch = PressureWatch()
    (said,) = [each for each in watch.look(tmp_path, "[Errno 122] Disk quota exceeded") if each.kind == "log-disk"]
    assert said.text == "logs cannot be written: [Errno 122] Disk quota exceeded"
    assert [each.text for each in watch.look(tmp_path) if each.kind == "log-disk"] == [""]
    (said,) = [each for each in watch.look(tmp_path / "removed") if each.kind == "log-disk"]
    assert "No such file" in said.text


def test_readings_of_this_machine(tmp_path: Path) -> None:
    usage = read_usage(tmp_path)
    assert 0 <= usage.shm_share <= 1
    assert 0 < usage.files_share < 1
    assert usage.log_free_bytes > 0
