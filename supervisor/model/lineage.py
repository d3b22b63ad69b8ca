"""Which states are on the branch that the job is on? Pure.

A recovery that resumes at k makes every later state of earlier generations a dead branch. A state (generation g, step j)
counts only if j <= resume_step of every plan that was sent in a generation after g.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from deadpool.proto.messages import NO_STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A plan that was sent in this generation."""

    generation: int
    resume_step: int


def usable(generation: int, step: int, lineage: Iterable[Sent]) -> bool:
    """Returns whether a state is on the branch that the job is on."""
    return step != NO_STEP and all(step <= sent.resume_step for sent in lineage if sent.generation > generation)
