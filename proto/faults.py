"""The failures that can be injected: what the number names, who carries it out, what it does. One table for every room.

The moment (`@STEP`) is noticed by the agent of the target, which reads its ranks' call records (of any
agent where none is named); where the target cannot, being frozen or cut off, by the supervisor from heartbeats (`watched=False`).
"""

from dataclasses import dataclass
from enum import StrEnum


class Target(StrEnum):
    NODE = "node"  # its launch index
    RANK = "rank"
    NONE = "none"  # 0


class Hand(StrEnum):
    """Who carries it out once the supervisor has agreed."""

    AGENT = "agent"
    TRAINER = "trainer"  # the rank's own process, in the step (trainer_hooks/fault_injection.py): needs deadpool.join()
    LAUNCHER = "launcher"  # of a standalone job: it reads the supervisor's event
    SUPERVISOR = "supervisor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """`ends`: the target's process or node counts as failed since the injection, whenever that is noticed."""

    target: Target
    hand: Hand
    does: str
    ends: bool = False
    watched: bool = True
    at_step: bool = True  # False: the target makes no steps, so it can only be asked for now
    netns: bool = False  # needs a network namespace per node


def _node(hand: Hand, does: str, **more: bool) -> Fault:
    return Fault(target=Target.NODE, hand=hand, does=does, **more)


def _rank(hand: Hand, does: str, **more: bool) -> Fault:
    return Fault(target=Target.RANK, hand=hand, does=does, **more)


FAULTS = {
    "kill-node": _node(Hand.AGENT, "SIGKILL to every process of the node", ends=True),
    "kill-agent": _node(Hand.AGENT, "SIGKILL to the node's agent alone: its ranks are orphans", ends=True),
    "freeze-node": _node(Hand.AGENT, "SIGSTOP to every process of the node", ends=True),
    "thaw-node": _node(Hand.LAUNCHER, "SIGCONT to every process of the node", watched=False),
    "partition-node": _node(Hand.LAUNCHER, "the node's network link goes down", ends=True, netns=True),
    "heal-node": _node(Hand.LAUNCHER, "the node's network link comes back", watched=False, netns=True),
    "boot-node": _node(Hand.LAUNCHER, "the dead node's agent is started again, as after a repair", watched=False),
    "fill-shm": _node(Hand.AGENT, "takes all that is free of the node's /dev/shm"),
    "free-shm": _node(Hand.AGENT, "gives back what fill-shm took"),
    "kill-spare": Fault(
        target=Target.NONE, hand=Hand.SUPERVISOR, does="kill-node for the spare that would be used next", watched=False
    ),
    "kill-supervisor": Fault(target=Target.NONE, hand=Hand.SUPERVISOR, does="SIGKILL to the supervisor"),
    "kill-rank": _rank(Hand.AGENT, "SIGKILL to the rank's process", ends=True),
    "freeze-rank": _rank(Hand.AGENT, "SIGSTOP to the rank's process", ends=True),
    "thaw-rank": _rank(Hand.AGENT, "SIGCONT to the rank's process", at_step=False),
    "corrupt-snapshot": _rank(Hand.AGENT, "flips bytes in the rank's sealed snapshots"),
    "corrupt-replica": _rank(Hand.AGENT, "flips bytes in the rank's sealed replicas, wherever they are"),
    "slow-rank": _rank(Hand.TRAINER, "the rank's next ten steps take longer"),
    "raise-rank": _rank(Hand.TRAINER, "an exception in the rank's step", ends=True),
    "oom-rank": _rank(Hand.TRAINER, "the rank allocates beyond a memory limit: MemoryError in its step", ends=True),
    "hang-rank": _rank(Hand.TRAINER, "the rank never leaves its step: it calls no collective any more", ends=True),
    "lose-network-briefly": _rank(Hand.TRAINER, "the rank's connections to its groups break; new ones can be made immediately"),
}


def names(target: Target, *, ends: bool) -> frozenset[str]:
    """Returns the kinds with such a target that do (or do not) end it."""
    return frozenset(kind for kind, fault in FAULTS.items() if fault.target is target and fault.ends is ends)
