"""Over how many connections a rank's states travel to one holder: where a single stream does not fill the link, more do. Pure.

Left to itself (auto) it begins with one, and goes on to 2, 4 and 8 as long as each step makes large states a fifth faster. What
limits a state's way may be the copy that it follows, or a processor: then more connections bring nothing, and one stays.
"""

import math

AUTO = 0
_WINDOW_BYTES = 3 << 20  # that one connection lets be on its way, as kernels are mostly set up
_FAST_BYTES_PER_S = 2.5e9  # what a process takes from a link at most
LARGE_BYTES = 32 << 20  # a smaller state is over before its rate says anything
_LEVELS = (1, 2, 4, 8)
_FIRST = 2  # states that are not measured: the holder's memory is new to it
_GROWING = 1  # states that are not measured after more were opened: their windows have to grow
_TRIES = 2  # states with each number; the faster one counts
_GAIN = 1.2


def to_fetch(wanted: int, round_trip_s: float) -> int:
    """Returns over how many a state is fetched in a recovery. With AUTO there is no time to try: a far link gets more."""
    if wanted != AUTO:
        return wanted
    return max(1, min(math.ceil(round_trip_s * _FAST_BYTES_PER_S / _WINDOW_BYTES), _LEVELS[-1]))


class Connections:
    """`wanted`: how many, or AUTO."""

    def __init__(self, wanted: int) -> None:
        self._settled = wanted != AUTO
        self._levels = _LEVELS if wanted == AUTO else (wanted,)
        self._level = 0
        self._unmeasured = _FIRST
        self._rates: list[float] = []  # bytes/s, with this number
        self._before = 0.0  # with the number before

    @property
    def number(self) -> int:
        """For the next state."""
        return self._levels[self._level]

    def failed(self) -> None:
        """So many could not be opened: where that was a try, it is the last one."""
        if self._level > 0:
            self._level -= 1
            self._settled = True

    def took(self, sent_bytes: int, duration_s: float) -> None:
        """A state has travelled over `number` connections."""
        if self._settled or sent_bytes < LARGE_BYTES:
            return
        if self._unmeasured:
            self._unmeasured -= 1
            return
        self._rates.append(sent_bytes / max(duration_s, 1e-6))
        if len(self._rates) < _TRIES:
            return
        rate, self._rates = max(self._rates), []
        if self._before and rate < _GAIN * self._before:
            self._level -= 1
            self._settled = True
            return
        self._before = rate
        if self._level + 1 < len(self._levels):
            self._level += 1
            self._unmeasured = _GROWING
        else:
            self._settled = True
