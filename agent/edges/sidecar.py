"""One process of an MPI pair: rank 0 is the sender, on the owner's node, rank 1 the receiver, on the holder's.

    mpiexec -n 2 python -m deadpool.agent.edges.sidecar --nodes OWNER HOLDER --vaults OWNERS HOLDERS

Neither is a part of the training: where one of the two dies, MPI ends the other, and nobody else. Each holds a connection to its
own node's agent and ends with it. MPI is initialised for one thread; whoever waits polls with pauses. That both have met is a
line on stdout for whoever has started them; what went wrong goes to stderr.
"""

import argparse
import json
import os
import select
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

from deadpool.agent.edges.receiver import EdgeReceiver
from deadpool.agent.edges.segments import unlink_mapped_segments
from deadpool.agent.edges.sender import EdgeSender
from deadpool.agent.edges.transfer import Transfer
from deadpool.host.errors import DeadpoolError, UnavailableError
from deadpool.proto.vault.edge import STALL_S, VAULT_SOCKET, connect_in

_CONNECT_TIMEOUT_S = 5.0
_OF_A_PAIR = 2


def main() -> NoReturn:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", nargs=_OF_A_PAIR, required=True)
    parser.add_argument("--vaults", nargs=_OF_A_PAIR, type=Path, required=True)
    arguments = parser.parse_args()

    try:
        import mpi4py

        mpi4py.rc.threads = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: no library of MPI can be loaded
        sys.exit(f"mpi4py for {sys.executable}: {error}")
    communicator = MPI.COMM_WORLD
    communicator.Set_errhandler(MPI.ERRORS_RETURN)
    rank = communicator.rank % _OF_A_PAIR
    try:
        if communicator.size != _OF_A_PAIR:
            raise UnavailableError(f"a pair of {communicator.size}: mpi4py and the launcher are of different MPI builds")
        _play(communicator, rank, arguments.nodes, arguments.vaults[rank])
    except (DeadpoolError, OSError, MPI.Exception) as error:
        print(f"{arguments.nodes[rank]}: {error}", file=sys.stderr, flush=True)
    unlink_mapped_segments()
    os._exit(3)  # MPI_Finalize would wait for the other one


def _play(communicator: Any, rank: int, nodes: list[str], vault: Path) -> None:
    with _agent(vault) as agent:
        transfer = Transfer(communicator, lambda: _check(agent), STALL_S)
        transfer.send_frame({"pid": os.getpid()})
        peer = transfer.receive_frame(None)
        unlink_mapped_segments()
        if rank == 1:
            EdgeReceiver(transfer, vault).serve()
        sender = EdgeSender(transfer, vault, nodes[1])
        print(json.dumps({"met": [os.getpid(), peer["pid"]]}), flush=True)
        sender.serve(agent)


def _agent(vault: Path) -> socket.socket:
    try:
        return connect_in(vault, VAULT_SOCKET, _CONNECT_TIMEOUT_S)
    except OSError as error:
        raise UnavailableError(f"its agent is not here: {vault}: {error.strerror or error}") from error


def _check(agent: socket.socket) -> None:
    """UnavailableError once the agent is gone. It never says anything here."""
    if select.select([agent], [], [], 0)[0]:
        raise UnavailableError("its agent is gone")


if __name__ == "__main__":
    main()
