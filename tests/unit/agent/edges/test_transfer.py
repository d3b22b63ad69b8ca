"""What travels between the two processes of a pair, without MPI: a communicator of queues stands in for it."""

import threading
from pathlib import Path

import pytest
from fake_pair import Communicator, ends

from deadpool.agent.edges.receiver import EdgeReceiver
from deadpool.agent.edges.segments import mapped_segments
from deadpool.agent.edges.sender import slices_of
from deadpool.agent.edges.transfer import Transfer
from deadpool.host.errors import UnavailableError

PIECE_BYTES = 10


def test_frames_and_data_come_as_they_were_sent() -> None:
    sender, receiver = ends(60.0)
    assert receiver.poll_frame() is None
    sender.send_frame({"put": {"rank": 1}})
    sender.send_frame({"go": True})
    sender.send(iter(slices_of(memoryview(b"a" * 25), PIECE_BYTES)))
    assert receiver.receive_frame(60.0) == {"put": {"rank": 1}}
    assert receiver.poll_frame() == {"go": True}
    data, landed = bytearray(25), []
    receiver.receive(iter(slices_of(memoryview(data), PIECE_BYTES)), lambda: landed.append(len(landed)))
    assert bytes(data) == b"a" * 25
    assert landed == [0, 1, 2]


def test_a_transfer_without_progress_says_so_and_looks_around_meanwhile() -> None:
    looked = threading.Event()
    alone = Transfer(Communicator(1, {}, {}), looked.set, 0.05)
    with pytest.raises(UnavailableError, match="no progress for"):
        alone.receive(iter([memoryview(bytearray(3))]))
    assert looked.is_set()


def test_a_transfer_without_a_pause_looks_around_with_each_piece() -> None:
    sender, _ = ends(60.0)
    looks: list[int] = []
    sender.between_polls(lambda: looks.append(len(looks)))
    sender.send(iter(slices_of(memoryview(b"a" * 95), PIECE_BYTES)))
    assert len(looks) == 10


def test_a_receiver_hears_from_a_sender_that_has_nothing_to_send_and_ends_without_it(tmp_path: Path) -> None:
    sender, at_receiver = ends(60.0)
    for _ in range(3):
        sender.send_frame({"here": True})
    heard = [at_receiver.poll_frame() for _ in range(2)]
    assert heard == [{"here": True}] * 2
    with pytest.raises(UnavailableError, match="no progress for"):
        EdgeReceiver(at_receiver, tmp_path, silence_s=0.05).serve()


def test_segments_are_known_by_their_names_and_only_those() -> None:
    maps = """\
7f0-7f1 rw-s 00000000 00:18 5 /dev/shm/mpich_shm_be0e4f9e_0
7f1-7f2 rw-s 00000000 00:18 6 /dev/shm/deadpool-job-node0/snapshot-0-a
7f2-7f3 rw-s 00000000 00:18 7 /dev/shm/sm_segment.vm.0.2f1.0
7f3-7f4 rw-s 00000000 00:18 8 /dev/shm/mpich_shm_old (deleted)
7f4-7f5 r-xp 00000000 08:01 9 /usr/lib/libmpi.so.12
"""
    assert mapped_segments(maps) == {Path("/dev/shm/mpich_shm_be0e4f9e_0"), Path("/dev/shm/sm_segment.vm.0.2f1.0")}
