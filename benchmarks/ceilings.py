"""What this machine can do at most: the figures beside which the data plane's are to be read, all in GB/s.

Each function returns one figure for every repeat, each method of Memory one for its call. Buffers have been touched before: no
page fault is measured.
"""

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch
import xxhash

from deadpool.agent.edges.launcher import find_launcher, is_root, pair_command, pair_environment
from deadpool.host.errors import ConfigError

_PIECE_BYTES = 1 << 20
_MPI_TIMEOUT_S = 30.0
_MPI_LOOP = """
import json, sys, time
import numpy
from mpi4py import MPI
size_bytes, repeats, rank = int(sys.argv[1]), int(sys.argv[2]), MPI.COMM_WORLD.Get_rank()
data, done, times_s = numpy.ones(size_bytes, numpy.uint8), numpy.zeros(1, numpy.uint8), []
for _ in range(repeats + 1):
    began_s = time.perf_counter()
    for sender, part in ((0, data), (1, done)):
        MPI.COMM_WORLD.Send(part, 1 - rank) if rank == sender else MPI.COMM_WORLD.Recv(part, 1 - rank)
    times_s.append(time.perf_counter() - began_s)
if rank == 0:
    print(json.dumps(times_s[1:]))
"""


def rate(size_bytes: int, act: Callable[[], object]) -> float:
    """Returns GB/s of one call."""
    began_s = time.perf_counter()
    act()
    return size_bytes / (time.perf_counter() - began_s) / 1e9


def rates(size_bytes: int, repeats: int, act: Callable[[], object]) -> list[float]:
    """Returns GB/s of each call but the first."""
    return [rate(size_bytes, act) for _ in range(repeats + 1)][1:]


class Memory:
    """memcpy and xxh3, a call at a time: they take turns with what is measured beside them, and meet the same machine."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._source, self._target = (torch.full((size_bytes,), value, dtype=torch.uint8) for value in (1, 0))

    def memcpy(self) -> float:
        return rate(self._size_bytes, lambda: self._target.copy_(self._source))

    def xxh3(self) -> float:
        data = self._source.numpy().data
        return rate(self._size_bytes, lambda: xxhash.xxh3_64_intdigest(data))


def socket_loop(size_bytes: int, repeats: int) -> list[float]:
    """One connection over loopback to another process, which receives into memory of its own and answers with one byte."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    receiver = multiprocessing.get_context("spawn").Process(target=_receive, args=(theirs, size_bytes, repeats + 1))
    receiver.start()
    try:
        data = torch.ones(size_bytes, dtype=torch.uint8).numpy().data
        with socket.create_connection(("127.0.0.1", ours.recv())) as connection:

            def send() -> None:
                connection.sendall(data)
                connection.recv(1)

            return rates(size_bytes, repeats, send)
    finally:
        receiver.join()


def _receive(parent: Connection, size_bytes: int, times: int) -> None:
    memory = torch.ones(size_bytes, dtype=torch.uint8).numpy().data
    with socket.create_server(("127.0.0.1", 0)) as listener:
        parent.send(listener.getsockname()[1])
        connection, _ = listener.accept()
        with connection:
            for _ in range(times):
                received = 0
                while received < size_bytes:
                    part = memory[received : received + _PIECE_BYTES]
                    received += connection.recv_into(part, 0, socket.MSG_WAITALL)
                connection.sendall(b"!")


def mpi_loop(size_bytes: int, repeats: int) -> list[float] | None:
    """Between two processes that mpiexec starts; None where mpi4py or mpiexec is missing, or they cannot start."""
    try:
        launcher = find_launcher()
    except ConfigError:
        return None
    loop = [sys.executable, "-c", _MPI_LOOP, str(size_bytes), str(repeats)]
    command = pair_command(launcher, ["here", "here"], loop, slurm=False, root=is_root())
    environment = pair_environment(os.environ, launcher, one_machine=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MPI_TIMEOUT_S, check=False, env=environment)
    except subprocess.TimeoutExpired:
        print(f"the MPI loop has not ended in {_MPI_TIMEOUT_S:g} s", file=sys.stderr)
        return None
    if done.returncode:
        print(f"the MPI loop ended with exit code {done.returncode}: {done.stderr[-500:]}", file=sys.stderr)
        return None
    return [size_bytes / each_s / 1e9 for each_s in json.loads(done.stdout)]
