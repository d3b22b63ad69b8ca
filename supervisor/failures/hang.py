"""Has the training stopped without anyone dying, and whose fault is it? Pure.

`StepWatch` hears the heartbeats and says when no rank's step has advanced for too long; it begins anew in each generation.
`find_culprit` reads the ranks' call records (what each has entered and left, of every group) and names one rank.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deadpool.proto.messages import GroupCall, Heartbeat, RankCalls, RankProgress

FLOOR_S = 30.0  # of the learned timeout
_LEFT_FLOOR_S = 2.0  # of the same, once a rank has left its loop: the others follow it, or wait for it
TIMES = 5.0  # the longest that was seen in this job, so many times over
_P2P = ("send", "recv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """No rank's step has advanced for so long. `sure`: longer than the user allows, not only longer than was learned."""

    seconds: float
    sure: bool


class StepWatch:
    """`timeout_s`: as the user gave it, else None: learned, and then it counts only once a step was made.

    What lies between two steps (evaluation, a checkpoint) belongs to the pause that is learned from. The first step of a
    generation is left out of that: before it the script builds its model and compiles, for minutes. A learned timeout that has
    run out is five times as long from then on: if it was wrong, it must not be wrong again and again.
    """

    def __init__(self, *, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self.longest_s = 0.0  # between two steps, in this job
        self._begin(None, 0.0)

    def _begin(self, generation: int | None, now_s: float) -> None:
        self.generation = generation
        self._moved_s = self._quiet_s = now_s  # when a step advanced; from when on the timeout is counted
        self._stepped = False
        self._known: dict[int, tuple[RankProgress, ...]] = {}  # a node's first rank -> what it has said last

    def heard(self, heartbeat: Heartbeat, *, now_s: float) -> None:
        if heartbeat.generation != self.generation or not heartbeat.ranks:
            return
        first = heartbeat.ranks[0].rank
        before, self._known[first] = self._known.get(first, ()), heartbeat.ranks
        if any(_advanced(then, now) for then, now in zip(before, heartbeat.ranks, strict=False)):  # the first one, as a rule
            if self._stepped:
                self.longest_s = max(self.longest_s, now_s - self._moved_s)
            self._moved_s = self._quiet_s = now_s
        self._stepped = self._stepped or any(each.steps_done > 0 for each in heartbeat.ranks)

    def limit_s(self, *, left: bool = False) -> float | None:
        """Returns how long no step may advance; None while there is no limit."""
        learned_s = max(_LEFT_FLOOR_S if left else FLOOR_S, TIMES * self.longest_s) if self._stepped else None
        if self.timeout_s is None or not left or learned_s is None:
            return learned_s if self.timeout_s is None else self.timeout_s
        return min(self.timeout_s, learned_s)

    def check(self, *, generation: int | None, left: bool = False, now_s: float) -> Stall | None:
        """Returns for how long no step has advanced once that is too long; again after another timeout.

        `generation`: the one whose ranks should be making steps now; None when none should. `left`: a rank has left its loop.
        """
        if generation != self.generation:
            self._begin(generation, now_s)
        limit_s = self.limit_s(left=left)
        if generation is None or limit_s is None or now_s - self._quiet_s <= limit_s:
            return None
        self._quiet_s = now_s
        stalled_s = now_s - self._moved_s
        self.longest_s = max(self.longest_s, stalled_s)
        return Stall(seconds=stalled_s, sure=self.timeout_s is not None and stalled_s > self.timeout_s)


def _advanced(then: RankProgress, now: RankProgress) -> bool:
    """Returns whether the same process has come further."""
    return (
        (now.step > then.step or (now.step == then.step and now.steps_done > then.steps_done))
        and now.rank == then.rank
        and now.pid == then.pid
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """`call`: its number in the group; 0 when it is not a call."""

    rank: int
    group: str
    operation: str
    call: int
    waiting: tuple[int, ...]
    why: str


def find_culprit(ranks: Sequence[RankCalls]) -> tuple[Culprit | None, str]:
    """Returns the rank that the others wait for, or None, and why.

    That is: one whose process is stopped, whatever the others wait for; else the one that has not entered a call which others are
    in, and does not itself wait for a rank in the same manner; else the one that is alone in a call which all others have left.
    Groups with point-to-point calls are left out: their ranks do not count the same calls.
    """
    groups = _groups(ranks)
    missing: dict[int, dict[str, list[int]]] = {}  # who is waited for -> group -> by whom
    waits: set[int] = set()
    for name, members in groups.items():
        for rank, call in members.items():
            late = [other for other, its in members.items() if its.entered < call.entered]
            if call.entered > call.completed and late:
                waits.add(rank)
                for other in late:
                    missing.setdefault(other, {}).setdefault(name, []).append(rank)
    roots = [rank for rank in missing if rank not in waits]
    stopped = [each.rank for each in ranks if each.stopped]
    if stopped and not missing.keys() & set(stopped):
        why = "has a stopped process"
        return Culprit(rank=stopped[0], group="", operation="", call=0, waiting=(), why=why), why
    if missing:
        suspects = [rank for rank in stopped if rank in missing] or roots or missing
        rank = min(suspects, key=lambda each: (-_waiters(missing[each]), each))
        culprit = _absent(rank, missing[rank], groups)
        return culprit, culprit.why if roots or stopped else f"{culprit.why}; the ranks' calls come in different orders"
    for name, members in groups.items():
        inside = [rank for rank, call in members.items() if call.entered > call.completed]
        if len(inside) == 1 and len(members) > 1:
            (rank,), number = inside, members[inside[0]].entered
            operation = members[rank].operation
            why = f"is alone in call {number} ({operation}) of group {name}, which the others have left"
            waiting = tuple(sorted(other for other in members if other != rank))
            return Culprit(rank=rank, group=name, operation=operation, call=number, waiting=waiting, why=why), why
    return None, _nobody(groups)


def _groups(ranks: Sequence[RankCalls]) -> dict[str, dict[int, GroupCall]]:
    """Returns group -> rank -> its calls, for the groups whose ranks count the same calls."""
    groups: dict[str, dict[int, GroupCall]] = {}
    for each in ranks:
        for call in each.groups:
            groups.setdefault(call.group, {})[each.rank] = call
    return {
        name: members for name, members in groups.items() if not any(call.operation.startswith(_P2P) for call in members.values())
    }


def _waiters(by_group: Mapping[str, Sequence[int]]) -> int:
    return len({rank for waiting in by_group.values() for rank in waiting})


def _absent(rank: int, by_group: Mapping[str, Sequence[int]], groups: Mapping[str, Mapping[int, GroupCall]]) -> Culprit:
    """Returns the culprit that has not entered a call of the group in which most ranks wait for it."""
    name = max(by_group, key=lambda each: len(by_group[each]))
    members, number = groups[name], groups[name][rank].entered + 1
    at = [members[other].operation for other in by_group[name] if members[other].entered == number]
    operation = Counter(at or [members[other].operation for other in by_group[name]]).most_common(1)[0][0]
    why = f"has not entered call {number} ({operation}) of group {name}"
    return Culprit(rank=rank, group=name, operation=operation, call=number, waiting=tuple(sorted(by_group[name])), why=why)


def _nobody(groups: Mapping[str, Mapping[int, GroupCall]]) -> str:
    for name, members in groups.items():
        inside = sorted(rank for rank, call in members.items() if call.entered > call.completed)
        if inside:
            call = members[inside[0]]
            who = "all ranks" if len(inside) == len(members) else f"ranks {', '.join(map(str, inside))}"
            return f"{who} wait in call {call.entered} ({call.operation}) of group {name}, which every rank has entered"
    return ""
