"""What a node's agent needs of its machine, before any rank asks for more. Pure."""

from deadpool.proto.config import JobConfig, Places, Transport

_OPEN_FILES, _OPEN_FILES_PER_RANK = (
    40,
    12,
)  # of the agent, a neighbour's replicas included; stand-ins are as many as ranks at most
_THREADS = 16  # the agent's, most of them gRPC's, and its warm process
_THREADS_OF_RANK = 14  # of one that has joined: torch's, gRPC's, ours; a stand-in gets as many


def nodes_kept(*, nnodes: int, spares: int, replicas: int, places: Places) -> int:
    """Returns of how many nodes one keeps the replicas at most (supervisor/model/placing.py; no topology asks for more)."""
    in_ring = min(replicas, nnodes - 1)
    by_spares = {Places.RING: replicas - in_ring, Places.SPARES: replicas, Places.BOTH: replicas - in_ring + min(1, replicas)}
    by_each = min(by_spares[places], spares)
    rounds, rest = divmod(nnodes, max(1, spares))
    return max(in_ring, rounds * by_each + min(rest, by_each))


def open_files(config: JobConfig) -> int:
    """Returns how many the agent needs. Connections that are only tried, with auto, it can do without."""
    replicas = config.replicas if config.h2h is not Transport.OFF else 0
    nodes = nodes_kept(nnodes=config.nnodes, spares=config.spares, replicas=replicas, places=config.place_replicas)
    connections = nodes * max(1, config.replica_connections)
    return _OPEN_FILES + (_OPEN_FILES_PER_RANK + max(0, connections - 1)) * config.nproc_per_node


def processes(config: JobConfig) -> int:
    """Returns how many processes and threads, its ranks counted as one each."""
    return _THREADS + config.nproc_per_node


def processes_once_joined(config: JobConfig) -> int:
    """Returns how many of them a node has whose ranks, and as many stand-ins, have called join()."""
    return processes(config) + 2 * config.nproc_per_node * _THREADS_OF_RANK
