"""What a node's agent needs of its machine, before any rank asks for more. Pure."""

from deadpool.proto.config import JobConfig

_OPEN_FILES, _OPEN_FILES_PER_RANK = 40, 12  # of the agent; stand-ins are as many as ranks at most
_THREADS = 16  # the agent's, most of them gRPC's, and its warm process
_THREADS_OF_RANK = 14  # of one that has joined: torch's, gRPC's, ours; a stand-in gets as many


def open_files(config: JobConfig) -> int:
    return _OPEN_FILES + _OPEN_FILES_PER_RANK * config.nproc_per_node


def processes(config: JobConfig) -> int:
    """Returns how many processes and threads, its ranks counted as one each."""
    return _THREADS + config.nproc_per_node


def processes_once_joined(config: JobConfig) -> int:
    """Returns how many of them a node has whose ranks, and as many stand-ins, have called join()."""
    return processes(config) + 2 * config.nproc_per_node * _THREADS_OF_RANK
