"""What a person asks of all ranks at once, and what has been answered so far."""

import asyncio

from deadpool.proto.messages import CallReport, RankCalls
from deadpool.proto.messages.status import Diagnosis
from deadpool.supervisor.failures.hang import find_culprit

_ANSWER_S = 6.0  # an agent takes up to 3 s for the stacks


class CallsQuestion:
    """What calls are the ranks in? `owing`: the nodes that have not answered."""

    def __init__(self, generation: int, owing: set[str]) -> None:
        self.owing = owing
        self._generation = generation
        self._ranks: list[RankCalls] = []
        self._answered = asyncio.Event()

    def heard(self, node_id: str, report: CallReport) -> None:
        if node_id in self.owing:
            self.owing.discard(node_id)
            self._ranks += report.ranks
        if not self.owing:
            self._answered.set()

    async def diagnosis(self) -> Diagnosis:
        """Returns what has been answered once everybody has, or within a few seconds."""
        if self.owing:
            waiting = asyncio.ensure_future(self._answered.wait())
            await asyncio.wait({waiting}, timeout=_ANSWER_S)
            waiting.cancel()
        ranks = sorted(self._ranks, key=lambda each: each.rank)
        culprit, why = find_culprit(ranks)
        why = f"rank {culprit.rank} {why}" if culprit is not None else why
        return Diagnosis(generation=self._generation, ranks=tuple(ranks), missing=tuple(sorted(self.owing)), why=why)
