"""What kind of failure is it? Pure: the facts in, the class and the reason out.

| fact                                                       | class     |
|------------------------------------------------------------|-----------|
| node lost or silent                                        | permanent |
| a signal ended the process                                 | transient |
| exception or exit code, nothing committed yet              | fatal     |
| exception or exit code, same error, rank and step as before| fatal     |
| exception or exit code otherwise                           | transient |
| no process died (a collective failed)                      | transient |
| transient, and so were max_transient before on that node   | permanent |
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FailureClass(StrEnum):
    TRANSIENT = "transient"  # the same node gets the ranks again
    PERMANENT = "permanent"  # a spare takes the node's ranks
    FATAL = "fatal"  # the script is at fault: the job ends


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorMark:
    """What makes two failures of a rank the same one."""

    rank: int
    step: int
    exit_code: int
    last_line: str


def error_mark(*, rank: int, step: int, exit_code: int, error: str, log_tail: str) -> ErrorMark:
    lines = (error or log_tail).strip().splitlines()
    return ErrorMark(rank=rank, step=step, exit_code=exit_code, last_line=lines[-1].strip() if lines else "")


def classify_exit(
    *, mark: ErrorMark, signal: int, committed: bool, seen: Sequence[ErrorMark], transients_before: int, max_transient: int
) -> tuple[FailureClass, str]:
    """Returns the class of a rank's process that ended without success, and why.

    `seen`: earlier errors of the job. `transients_before`: of the same node, within the window.
    """
    if not signal:
        if not committed:
            return FailureClass.FATAL, "it failed before any step was committed"
        if mark in seen:
            return FailureClass.FATAL, f"the same error came again at step {mark.step}"
    if transients_before >= max_transient:
        return FailureClass.PERMANENT, f"its node has had {transients_before} failures of that kind before"
    return FailureClass.TRANSIENT, f"ended by signal {signal}" if signal else "an error that may not come again"
