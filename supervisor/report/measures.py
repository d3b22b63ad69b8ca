"""What metrics are made of: values."""

from collections.abc import Mapping
from dataclasses import dataclass

from deadpool.proto.messages.status import JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMeasures:
    """`events`: how many there were, by name and, for those in DETAILS, by what that field said.

    `spares`, `seats`: that the job is to have. `commit_age_s`: since the newest commit was first heard of; None before the first.
    """

    status: JobStatus
    spares: int
    seats: int
    events: Mapping[tuple[str, str], int]
    commit_age_s: float | None = None
