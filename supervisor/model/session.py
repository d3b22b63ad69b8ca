"""The conversation with an agent, numbered both ways, so that it outlives its connections and the supervisor's processes.

Orders are numbered by the core, over the whole job: each agent gets those that are for it, in rising numbers, and one for
everybody has one number. Replaying the journal gives the same orders the same numbers. An agent that comes back says which of
them it has had, and gets the rest; Welcome tells it which of its messages were acted on, and it says the rest again
(resumption.py). Nothing is lost, nothing is obeyed twice, whatever the orders are.

An agent whose node was given up begins a new conversation when it comes back. It has a number, which Welcome tells and Hello
repeats: the agent may not have had that Welcome when this supervisor dies.
"""

from dataclasses import dataclass, field

from deadpool.proto.messages import Hello, Order


@dataclass(slots=True, kw_only=True)
class SentOrders:
    """The job's orders. `newest`: the number of the last one; `to_all_newest`: of the last one for everybody.

    `to_all`: those for everybody which some agent is not known to have had; now and then a few more.
    """

    newest: int = 0
    to_all_newest: int = 0
    to_all: list[tuple[int, Order]] = field(default_factory=list)

    def next(self) -> int:
        self.newest += 1
        return self.newest

    def add_to_all(self, order: Order) -> int:
        """Returns the number of an order for everybody."""
        self.to_all_newest = self.next()
        self.to_all.append((self.to_all_newest, order))
        return self.to_all_newest

    def forget(self, number: int) -> None:
        """Every agent has had those up to this one, or is in a conversation that began later."""
        self.to_all = [each for each in self.to_all if each[0] > number]


@dataclass(slots=True, kw_only=True)
class AgentSession:
    """`life`: what tells this agent from a later one of its node. `unobeyed`: orders to it alone that it may not have had.

    `conversation`: its number; `before`: of the one that the agent was in when this one began, in that generation of the job.
    `since`: the number of the job's newest order then. `sent`: of the newest order to this agent alone. `had`: of the newest one
    that it is known to have had.
    """

    life: tuple[str, int, int, int]
    conversation: int
    before: int
    generation: int
    since: int = 0
    sent: int = 0
    had: int = 0
    heard: int = 0
    unobeyed: list[tuple[int, Order]] = field(default_factory=list)

    @property
    def incarnation(self) -> int:
        return self.life[3]

    @classmethod
    def begin(cls, hello: Hello, conversation: int, generation: int, since: int = 0) -> "AgentSession":
        return cls(
            life=_life(hello),
            conversation=conversation,
            before=hello.conversation,
            generation=generation,
            since=since,
            sent=since,
            had=since,
        )

    def is_of(self, hello: Hello) -> bool:
        """Returns whether this is the agent that it has been with, on a new connection."""
        return self.life == _life(hello) and hello.conversation in (self.conversation, self.before)

    def is_new(self, number: int) -> bool:
        """Returns whether this message was not acted on before; the unnumbered ones (Hello, heartbeats) are new each time."""
        if number == 0:
            return True
        if number <= self.heard:
            return False
        self.heard = number
        return True

    def sends(self, number: int, order: Order) -> None:
        """To this agent alone."""
        self.sent = number
        self.unobeyed.append((number, order))

    def missing(self, to_all: list[tuple[int, Order]]) -> list[tuple[int, Order]]:
        """Returns the orders that the agent may not have had, in order."""
        return sorted([*self.unobeyed, *(each for each in to_all if each[0] > self.had)], key=lambda each: each[0])

    def obeyed(self, number: int) -> None:
        self.had = max(self.had, number)
        while self.unobeyed and self.unobeyed[0][0] <= number:
            del self.unobeyed[0]


def _life(hello: Hello) -> tuple[str, int, int, int]:
    return hello.host, hello.port, hello.pid, hello.incarnation
