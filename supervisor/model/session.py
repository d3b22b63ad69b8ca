"""The conversation with an agent, numbered both ways, so that it outlives its connections and the supervisor's processes.

Orders to a node are numbered by the core; replaying the journal gives the same orders the same numbers. An agent that comes back
says which of them it has had, and gets the rest; Welcome tells it which of its messages were acted on, and it says the rest
again (resumption.py). Nothing is lost, nothing is obeyed twice, whatever the orders are.

An agent whose node was given up begins a new conversation when it comes back. It has a number, which Welcome tells and Hello
repeats: the agent may not have had that Welcome when this supervisor dies.
"""

from dataclasses import dataclass, field

from deadpool.proto.messages import Hello, Order, Welcome


@dataclass(slots=True, kw_only=True)
class AgentSession:
    """`life`: what tells this agent from a later one of its node. `unobeyed`: orders that it is not known to have had.

    `conversation`: its number; `before`: of the one that the agent was in when this one began, in that generation of the job.
    """

    life: tuple[str, int, int, int]
    conversation: int
    before: int
    generation: int
    sent: int = 0
    heard: int = 0
    unobeyed: list[tuple[int, Order]] = field(default_factory=list)

    @property
    def incarnation(self) -> int:
        return self.life[3]

    @classmethod
    def begin(cls, hello: Hello, conversation: int, generation: int) -> "AgentSession":
        return cls(life=_life(hello), conversation=conversation, before=hello.conversation, generation=generation)

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

    def number(self, order: Order) -> int:
        """Returns the number of this order; 0 for Welcome, which every Hello gets."""
        if isinstance(order, Welcome):
            return 0
        self.sent += 1
        self.unobeyed.append((self.sent, order))
        return self.sent

    def obeyed(self, number: int) -> None:
        while self.unobeyed and self.unobeyed[0][0] <= number:
            del self.unobeyed[0]


def _life(hello: Hello) -> tuple[str, int, int, int]:
    return hello.host, hello.port, hello.pid, hello.incarnation
