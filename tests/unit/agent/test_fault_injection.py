"""Injected failures of the vault: bytes really differ, a bad copy is found and unsealed, memory is really taken."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from replicas import RANK, Receiver, Replica, ask, send, serving

from deadpool.agent.fault_injection import corrupt
from deadpool.proto.messages import SlotKind
from deadpool.proto.vault.wire import Discard, ReserveSlots


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with serving(tmp_path) as receiver:
        yield receiver


def discard(step: int) -> Discard:
    return Discard(kind=SlotKind.REPLICA, rank=RANK, generation=1, step=step)


def test_a_bad_copy_is_unsealed_and_a_good_one_is_not(receiver: Receiver) -> None:
    connection = receiver.connect()
    replicas = Replica(step=7), Replica(step=8)
    ask(connection, ReserveSlots(rank=RANK, slot_bytes=replicas[0].slot_bytes))
    for replica in replicas:
        assert send(connection, replica, keep_step=7).error == ""
    assert ask(connection, discard(7))[0].error == ""
    assert receiver.steps() == {7, 8}
    assert corrupt(receiver.vault.folder, SlotKind.REPLICA, RANK) == 2
    assert receiver.steps() == {7, 8}  # nobody sees it by the tables
    ask(connection, discard(8))
    assert receiver.steps() == {7}


def test_what_is_not_there_cannot_be_corrupted(tmp_path: Path) -> None:
    assert corrupt(tmp_path, SlotKind.SNAPSHOT, 0) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system of its own")
def test_shm_is_really_filled(tmp_path: Path) -> None:
    fill = "import sys; from pathlib import Path; from deadpool.agent.fault_injection import fill; fill(Path(sys.argv[1]))"
    script = f"mount -t tmpfs -o size=8m tmpfs {tmp_path} && '{sys.executable}' -c '{fill}' {tmp_path} && df {tmp_path}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2] == "100%"
