"""What a relay passes on of what its group says, and when. Pure: messages and the time in, one batch for the supervisor out.

Everything goes on immediately but heartbeats. Of those the supervisor needs to hear that they came, how far the training is, and
what has changed; so each second it gets in columns whose heartbeat came when and with which step, and in full those that say
something else that is new, the one that is furthest, and each agent's once in `full_s`: seldom enough that one supervisor can
read those of all nodes.
"""

from dataclasses import dataclass, field

from deadpool.proto.messages import NO_STEP, AgentMessage, FromGroup, Heartbeat, Said

_FULL_S = 15.0  # at most so often
_FULL_PER_S = 270  # from all nodes together
_APART = 0.618  # of full_s, between the turns of an agent and the next one


def full_s(nodes: int) -> float:
    """Returns after how many seconds each of so many nodes is to be heard in full again."""
    return max(_FULL_S, nodes / _FULL_PER_S)


@dataclass(slots=True)
class _Member:
    """`heard_s`, `step`: of its last heartbeat, None once it was passed on. `shape`, `turn`: of the last that was so in full."""

    turn: int = 0
    shape: object = None
    heard_s: float | None = None
    step: int = NO_STEP


@dataclass(slots=True)
class RelayGroup:
    """The agents behind this relay, by number. A number is never given twice."""

    full_s: float = _FULL_S
    _members: dict[int, _Member] = field(default_factory=dict)
    _said: list[Said] = field(default_factory=list)
    _furthest: tuple[int, int, bytes] | None = None  # step, member, heartbeat: the furthest of those that were not passed on
    _generation: int = 0
    _step: int = NO_STEP  # that the supervisor knows of, in this generation
    _last: int = 0
    urgent: bool = False  # something waits that is no heartbeat

    def joined(self, hello: bytes) -> int:
        """An agent has come. Returns its number."""
        self._last += 1
        self._members[self._last] = _Member()
        self._say(self._last, hello)
        return self._last

    def heard(self, member: int, message: AgentMessage, data: bytes, *, now_s: float) -> None:
        """`data`: the message as it came."""
        known = self._members.get(member)
        if known is None:
            return
        if not isinstance(message, Heartbeat):
            self._say(member, data)
            return
        if message.generation > self._generation:
            self._generation, self._step, self._furthest = message.generation, NO_STEP, None
        step = max((each.step for each in message.ranks), default=NO_STEP)
        shape, turn = _shape(message), int(now_s / self.full_s + member * _APART)  # one after the other, not all in one second
        if (shape, turn) != (known.shape, known.turn):
            known.shape, known.turn, known.heard_s = shape, turn, None
            self._said.append(Said(member=member, message=data))
            self._step = max(self._step, step)
            if self._furthest is not None and self._furthest[1] == member:
                self._furthest = None
            return
        known.heard_s, known.step = now_s, step
        if step > self._step and (self._furthest is None or step > self._furthest[0]):
            self._furthest = step, member, data

    def left(self, member: int) -> None:
        """Its connection has ended."""
        if self._members.pop(member, None) is not None:
            self._said.append(Said(member=member, closed=True))
            self.urgent = True

    def take(self, *, now_s: float) -> FromGroup:
        """Returns what is to be passed on now: all that has come since the last time."""
        if self._furthest is not None:
            step, member, data = self._furthest
            if member in self._members:
                self._said.append(Said(member=member, message=data))
                self._members[member].heard_s = None
                self._step = max(self._step, step)
            self._furthest = None
        living = [(number, each.heard_s, each.step) for number, each in self._members.items() if each.heard_s is not None]
        for number, *_ in living:
            self._members[number].heard_s = None
        said, self._said, self.urgent = tuple(self._said), [], False
        return FromGroup(
            said=said,
            living=tuple(number for number, *_ in living),
            ages_ms=tuple(max(0, int(1e3 * (now_s - heard_s))) for _, heard_s, _ in living),
            steps=tuple(step for *_, step in living),
        )

    def _say(self, member: int, data: bytes) -> None:
        self._said.append(Said(member=member, message=data))
        self.urgent = True


def _shape(heartbeat: Heartbeat) -> object:
    """Returns what the supervisor has to hear of immediately when it changes."""
    ranks = tuple((each.rank, each.pid, each.stopped, each.steps_done > 0) for each in heartbeat.ranks)
    return heartbeat.generation, heartbeat.standins_ready, ranks
