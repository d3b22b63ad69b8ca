"""When to look for the verdict on a state.

Each look is a question to the store, asked by every rank for every state. Nothing waits for the answer but the next state, and
who says so: both hurry the next look. Until then it is enough to look once, after the time within which the last ones came.
"""

_FIRST_S, _LAST_S = 0.001, 0.25
_LATER = 1.25  # than the last one was there
_EARLIER = 0.98  # each time that it is there with the first look
_LONGER = 1.5  # from one look in vain to the next


class Looks:
    """For one state after the other. Pure: `now_s` is on any clock that runs on."""

    def __init__(self) -> None:
        self._usual_s = _FIRST_S
        self._began_s = self._pause_s = self._hurried_s = 0.0
        self._in_vain = False

    def begin(self, now_s: float) -> None:
        """A state is announced."""
        self._began_s, self._pause_s, self._hurried_s, self._in_vain = now_s, self._usual_s, _FIRST_S, False

    def pause_s(self) -> float:
        """Returns how long to wait before the next look, unless it is hurried."""
        return self._pause_s

    def nothing(self) -> None:
        """A look was in vain."""
        self._in_vain = True
        self._pause_s = min(_LONGER * self._pause_s, _LAST_S)

    def hurried_pause_s(self) -> float:
        """Returns the pause before the next look where somebody waits for it."""
        pause_s, self._hurried_s = self._hurried_s, min(_LONGER * self._hurried_s, _LAST_S)
        return pause_s

    def found(self, now_s: float) -> None:
        waited_s = now_s - self._began_s
        usual_s = _LATER * waited_s if self._in_vain else min(_EARLIER * self._usual_s, _LATER * waited_s)
        self._usual_s = min(max(usual_s, _FIRST_S), _LAST_S)
