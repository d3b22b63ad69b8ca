"""A failure, once it is known what kind of failure it is; and what is kept of it to judge later ones by."""

from dataclasses import dataclass
from enum import StrEnum


class FailureClass(StrEnum):
    TRANSIENT = "transient"  # the same node gets the ranks again
    PERMANENT = "permanent"  # a spare takes the node's ranks
    FATAL = "fatal"  # the script is at fault: the job ends
    PLANNED = "planned"  # no failure: a node is drained


class What(StrEnum):
    EXIT = "exit"
    SIGNAL = "signal"
    HANG = "hang"
    LATE = "late"
    HEALTH = "health"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorMark:
    """What makes two failures of a rank the same one."""

    rank: int
    step: int
    exit_code: int
    last_line: str

    def same_elsewhere(self, other: "ErrorMark") -> bool:
        """Returns whether the other one is this error on another rank."""
        return (self.step, self.exit_code, self.last_line) == (other.step, other.exit_code, other.last_line)


def error_mark(*, rank: int, step: int, exit_code: int, error: str, log_tail: str) -> ErrorMark:
    lines = (error or log_tail).strip().splitlines()
    return ErrorMark(rank=rank, step=step, exit_code=exit_code, last_line=lines[-1].strip() if lines else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierFailure:
    """An earlier failure of a process, on that node."""

    node_id: str
    what: What
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaver:
    """A rank whose process has exited with 0 before its step loop was done: the others may do so too, or miss it.

    `at_s`: when it has said that it would, else when it did.
    """

    node_id: str
    rank: int
    step: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What went wrong, once classified. `at_s`: when it happened (or the injection that led to it), in the supervisor's clock.

    `counted`: towards max_recoveries_without_progress, if it comes within a recovery (the first one of a recovery always counts).
    """

    cause: str
    failure_class: FailureClass
    node: str = ""
    ranks: tuple[int, ...] = ()
    at_s: float
    counted: bool = True
    details: str = ""  # traceback or last log lines
