"""The MPI pair from a rank's vault to a holder's, without the agents that start one in a job."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.protected_rank import TOKEN
from deadpool.agent.edges.launcher import find_launcher, is_root, pair_command, pair_environment, sidecar_command
from deadpool.agent.vault.replica_server import ReplicaServer
from deadpool.proto.messages import Endpoint


@contextmanager
def mpi_pair(owners: Path, holders: Path, holder: Endpoint) -> Iterator[None]:
    """Enters once both processes have met; they end with the door of the owner's vault. ConfigError: MPI is missing."""
    launcher = find_launcher()
    sidecar = sidecar_command(("rank", holder.node_id), (owners, holders))
    command = pair_command(launcher, ("localhost", "localhost"), sidecar, slurm=False, root=is_root())
    environment = pair_environment(os.environ, launcher, one_machine=True)
    server = ReplicaServer("127.0.0.1", TOKEN)
    server.start(owners)
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"the pair has not met: {process.communicate()[1].decode(errors='replace')}")
        yield
    finally:
        server.close()
        process.communicate()
