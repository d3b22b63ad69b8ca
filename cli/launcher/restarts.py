"""Is a supervisor that was lost started again, and when? Exit codes and times in, a delay out."""

from deadpool.proto.terms import CRASHED

_BACKOFF_S = (0.0, 0.5, 1.0, 2.0, 4.0)  # one after the other; more in a row are too many
_LIVED_S = 60.0  # whoever lived so long does not belong to the row


class Restarts:
    def __init__(self) -> None:
        self._in_a_row = 0
        self._started_s = 0.0

    def started(self, now_s: float) -> None:
        self._started_s = now_s

    @property
    def any(self) -> bool:
        return self._in_a_row > 0

    def delay_s(self, exit_code: int, now_s: float) -> float | None:
        """Returns how long to wait before the next start; None when there is none.

        `exit_code`: minus the signal for one that was killed. Whoever ended by itself meant it, unless an error of ours ended it.
        """
        if exit_code >= 0 and exit_code != CRASHED:
            return None
        if now_s - self._started_s > _LIVED_S:
            self._in_a_row = 0
        self._in_a_row += 1
        return _BACKOFF_S[self._in_a_row - 1] if self._in_a_row <= len(_BACKOFF_S) else None
