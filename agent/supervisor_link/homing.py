"""Through whom does this agent speak to the supervisor: a relay, or itself? Pure: routes and ends of streams in, a door out.

The supervisor routes it. A relay that is gone or does not answer is left; one that only has no supervisor just now is tried
again for a while, for it will have the next one as soon as anybody.
"""

_PATIENCE_S = 3.0  # with a relay that has no supervisor


class Homing:
    """`door`: HOST:PORT of the relay, "" when the agent speaks for itself."""

    def __init__(self) -> None:
        self.door = ""
        self._without_since_s: float | None = None

    def routed(self, through: str) -> bool:
        """Returns whether the agent has to go to another place than it speaks from now."""
        moved, self.door, self._without_since_s = through != self.door, through, None
        return moved

    def welcomed(self) -> None:
        """The supervisor has answered."""
        self._without_since_s = None

    def ended(self, *, relay_lives: bool, now_s: float) -> None:
        """A stream, or the try to open one, has ended. `relay_lives`: it has said that it has no supervisor."""
        if relay_lives and self._without_since_s is None:
            self._without_since_s = now_s
        if not relay_lives or (self._without_since_s is not None and now_s - self._without_since_s > _PATIENCE_S):
            self.door, self._without_since_s = "", None
