"""What ranks say in a recovery goes on together, in one message of their node. Pure; times are monotonic seconds.

Every rank says four times how far it is, and the ranks of a node do so within milliseconds of each other. The first word waits
for those of the other ranks, for WAIT_S at most, and the last one for nothing. Before the node says anything else, they go on.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, fields

from deadpool.proto.messages import AgentMessage, RankPrepared, RankReformed, RankRestored, RankResumed, RanksSaid

GATHERED = (RankPrepared, RankReformed, RankRestored, RankResumed)
WAIT_S = 0.005

Word = RankPrepared | RankReformed | RankRestored | RankResumed


@dataclass(slots=True)
class Gathering:
    """`deadline_s`: when what waits must go on; None: nothing waits."""

    deadline_s: float | None = None
    _waiting: list[Word] = field(default_factory=list)
    _generation: int = 0
    _said: dict[type[Word], set[int]] = field(default_factory=dict)  # in this generation, by the kind of word

    def add(self, word: Word, ranks: Collection[int], *, now_s: float) -> bool:
        """Returns whether nothing is to be waited for: all of these ranks have said this."""
        if word.generation > self._generation:
            self._generation, self._said = word.generation, {}
        said = self._said.setdefault(type(word), set())
        said.add(word.rank)
        self._waiting.append(word)
        if self.deadline_s is None:
            self.deadline_s = now_s + WAIT_S
        return said.issuperset(ranks)

    def is_current(self, word: Word) -> bool:
        """Returns whether it is of the generation of what was gathered last, or a newer one begins."""
        return word.generation >= self._generation

    def begins(self, word: Word) -> bool:
        """Returns whether what waits is of a generation before the word's: it goes on first."""
        return bool(self._waiting) and word.generation > self._generation

    def take(self) -> list[Word]:
        """Returns what waits, in the order in which it came."""
        waiting, self._waiting, self.deadline_s = self._waiting, [], None
        return waiting


def together(words: list[Word]) -> AgentMessage:
    """Returns one message for all these words, of one generation; a single one as it is."""
    if len(words) == 1:
        return words[0]
    by_kind = {
        RankPrepared: "prepared", RankReformed: "reformed", RankRestored: "restored", RankResumed: "resumed",
    }  # fmt: skip
    columns: dict[str, list[Word]] = {each.name: [] for each in fields(RanksSaid)}
    for word in words:
        columns[by_kind[type(word)]].append(word)
    return RanksSaid(**{name: tuple(column) for name, column in columns.items()})  # type: ignore[arg-type]
