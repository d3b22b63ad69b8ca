"""Draining a node: ask for it when the job can do it, then wait until nothing of the job depends on the node any more."""

from collections.abc import Callable
from typing import Protocol

from deadpool.host.errors import ConfigError, DeadpoolError
from deadpool.proto.messages.status import JobStatus, NodeStatus

_BUSY = ("assemble", "start", "recover")


class DrainedJob(Protocol):
    def status(self) -> JobStatus: ...

    def drain(self, node: str, reason: str) -> None: ...


def drain_node(job: DrainedJob, node: str, reason: str, *, pause: Callable[[], None]) -> str:
    """Returns what to tell once the node can be switched off. ConfigError: nothing has changed; DeadpoolError: it was undone.

    `pause` is called between two looks.
    """
    before = job.status()
    while before.phase in _BUSY:
        pause()
        before = job.status()
    name = _node(before, node).node_id
    job.drain(node, reason)
    while (told := _outcome(before, job.status(), name)) is None:
        pause()
    return told


def _outcome(before: JobStatus, now: JobStatus, name: str) -> str | None:
    """Returns what became of it; None while the ranks, or the replicas of their states, are on their way."""
    if _node(now, name).role == "lost":
        return f"{name} is gone"
    if _node(now, name).role == "draining":
        return None
    if _node(now, name).role != "drained":
        raise DeadpoolError(f"{name} keeps its ranks: no spare could take them, or it was asked back (deadpool events says more)")
    if now.generation == before.generation:  # it had none, and kept nothing for others
        return f"{name} is drained: it can be switched off"
    if now.phase in _BUSY:
        return None
    moved = now.recoveries[len(before.recoveries) :]
    resumed = moved[-1].resume_step if moved else now.commit_step
    if now.phase == "run" and now.commit_step <= resumed:  # its vault may be needed until the new generation commits
        return None
    ranks = ", ".join(str(rank) for rank in sorted({rank for each in moved for rank in each.ranks})) or "none"
    spares = ", ".join(each.spare for each in moved if each.spare)
    where = f" on {spares}" if spares else ""
    return f"{name} is drained: rank {ranks} now{where}, resumed at step {resumed}; it can be switched off"


def _node(status: JobStatus, name: str) -> NodeStatus:
    """Returns the node of that name or launch index."""
    nodes = {each.node_id: each for each in status.nodes}
    indices = {str(each.index): each for each in status.nodes if each.role != "lost"}
    found = nodes.get(name) or indices.get(name)
    if found is None:
        raise ConfigError(f"there is no node {name!r}: nodes are {', '.join(nodes) or 'not known yet'}")
    return found
