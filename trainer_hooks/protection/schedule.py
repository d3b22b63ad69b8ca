"""Which states are protected, and in which of them the ranks compare what they hold. Pure.

All ranks of a generation hear the same verdicts on the same states, so they decide alike and nobody need say so. A state that
some rank cannot protect is *refused*: the job trains on without a commit of it, and the next try comes after a pause that grows
with each refusal in a row, so that training is not held up again and again by copies that come to nothing.

Where protection cannot keep up, states are *passed over*. Which one is next is settled as soon as one is in hand (`begins`), by
the verdicts on those before it, which every rank has heard by then: when the next one is complete, a fast rank may know the
verdict on the one in hand, and a slow one not yet.
"""

from deadpool.proto.messages import NO_STEP

PAUSE_STEPS_MAX = 64
EXCHANGE_EVERY_STEPS = 256
SETTLING_STATES = 3  # of a start: what only happens to be the same (zeros, a learning rate of 0) comes to light in them


class Schedule:
    """`first_step`: of the generation. `exchange_from`, `exchanges`: the first state and the number of states in which the ranks
    find out who holds the same; later ones follow every EXCHANGE_EVERY_STEPS. `compare_every`: 0, or steps between two states in
    which they verify that it is still the same; a generation's first states are verified too, those that are to become
    persistent checkpoints (`keep_every`, or asked for), and those with an exchange, which would take a corrupted copy for one of
    its rank's own. `settled`: also the first exchanges; else those find out what only happens to be the same. `interval`: steps
    between two states, until a verdict says otherwise.
    """

    def __init__(
        self,
        *,
        first_step: int,
        exchange_from: int,
        exchanges: int,
        compare_every: int = 0,
        keep_every: int = 0,
        settled: bool = False,
        interval: int = 1,
    ) -> None:
        self._exchange_from, self._exchanges = exchange_from, exchanges
        self._compare_every, self._keep_every, self._settled = compare_every, keep_every, settled
        self._asked = False
        self._exchanged_step = first_step
        self._compared_step = NO_STEP
        self._refusals = 0  # in a row
        self.interval = interval
        self._next_step = first_step  # that is due

    def is_due(self, step: int) -> bool:
        """Returns whether S_step is to be protected; on any thread, once the state before it is in hand."""
        return step >= self._next_step or (self._keep_every > 0 and step % self._keep_every == 0)

    def begins(self, step: int) -> None:
        """S_step is in hand, and the verdicts on all before it are known."""
        pause = min(1 << self._refusals, 2 * PAUSE_STEPS_MAX) // 2
        self._next_step = step + max(self.interval, pause)

    def exchange_is_due(self, step: int) -> bool:
        if self._is_first_exchange(step):
            return True
        return step // EXCHANGE_EVERY_STEPS > self._exchanged_step // EXCHANGE_EVERY_STEPS

    def is_settled(self, step: int) -> bool:
        """Returns whether S_step is behind the states in which what only happens to be the same shows itself."""
        return self._settled or not self._is_first_exchange(step)

    def comparison_is_due(self, step: int) -> bool:
        every = self._compare_every
        if not every or not self.is_settled(step):
            return False
        if self._asked or self._compared_step == NO_STEP or self.exchange_is_due(step):
            return True
        return step // every > self._compared_step // every or (self._keep_every > 0 and step % self._keep_every == 0)

    def asked(self) -> None:
        """A checkpoint is asked for: of the next state that is compared, which is the next one for which that is possible."""
        self._asked = True

    def committed(self, step: int, interval: int = 1) -> None:
        """S_step is committed, and so all that was due in it is done. `interval`: what the ranks have agreed on with that."""
        if self.comparison_is_due(step):
            self._compared_step, self._asked = step, False
        if self.exchange_is_due(step):
            self._exchanges -= self._is_first_exchange(step)
            self._exchanged_step = step
        self._refusals, self.interval = 0, interval

    def refused(self, step: int) -> None:
        """Some rank cannot protect S_step: what was due in it is due in the next one that is tried."""
        self._refusals += 1

    def _is_first_exchange(self, step: int) -> bool:
        return self._exchanges > 0 and step >= self._exchange_from
