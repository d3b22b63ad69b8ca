"""The drill, as all parts of a job know it: the ways back from S_k to S_k-1, and where ranks write down what they held."""

from enum import StrEnum

FOLDER = "drill"  # in the job's log folder


class WayBack(StrEnum):
    """In the order in which they are taken."""

    NONE = "first"  # the attempt that the others are compared with
    IN_PLACE = "in-place"  # every rank keeps its process, and restores its own snapshot
    PROCESS = "process"  # every second rank gets a new process on its node, which restores the rank's own snapshot
    SPARE = "spare"  # a node counts as lost: new processes on a spare restore replicas and what peers hold
    CHECKPOINT = "checkpoint"  # all ranks get new processes, which resume from a persistent checkpoint
