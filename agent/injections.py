"""When an injection is carried out, in the middle of the target's step, and by which command. Pure.

The target's ranks do not leave that step before (`holds`): steps of a few milliseconds would be over before a busy agent looks.
"""

from collections.abc import Collection, Mapping
from typing import assert_never

from deadpool.agent.events import Command, InjectHere, KillNode, KillProcess, Tell
from deadpool.proto.call_record import Head
from deadpool.proto.faults import FAULTS, Hand, Target
from deadpool.proto.messages import NO_STEP, Inject, InjectFailure

CORRUPT_REPLICA = "corrupt-replica"
_PATIENCE_STEPS = 5


def is_due(injection: Inject, heads: Mapping[int, Head], now_ns: int) -> bool:
    """Returns whether the injection's moment has come: half a typical step into its step, whose first state is committed, or
    the newest one that was to be before it.

    An injection before that commit would undo the step before as well, and how often it does would be chance. Should the step be
    over first, the next one will do; a few steps on the commit is no longer waited for. `heads`: of this node's ranks. Where no
    rank is named the lowest of them counts; a node without ranks waits until it has some.
    """
    if injection.step == NO_STEP:
        return True
    if not heads:
        return False
    head = heads.get(injection.target if FAULTS[injection.kind].target is Target.RANK else min(heads))
    if head is None or head.step < injection.step or head.step_began_ns == 0:
        return False
    if head.step > injection.step + _PATIENCE_STEPS:
        return True
    return head.commit_step > head.step - max(1, head.interval) and now_ns - head.step_began_ns >= head.typical_step_ns // 2


def concerns(injection: Inject, *, index: int, ranks: Collection[int]) -> bool:
    """Returns whether this node must know of it. A rank may still come here, unless the injection is for now."""
    fault = FAULTS[injection.kind]
    if not fault.watched:
        return False
    match fault.target:
        case Target.NODE:
            return injection.target == index
        case Target.RANK:
            return injection.step != NO_STEP or injection.target in ranks or injection.kind == CORRUPT_REPLICA
        case Target.NONE:
            return True
        case _:
            assert_never(fault.target)


def command_for(injection: Inject, process: int | None) -> Command | None:
    """Returns what carries the injection out, None when nothing here does. `process`: the target's, if it is this node's."""
    fault, kind = FAULTS[injection.kind], injection.kind
    if fault.target is Target.RANK and process is None and kind != CORRUPT_REPLICA:
        return None
    match fault.hand:
        case Hand.AGENT if kind == "kill-node":
            return KillNode()
        case Hand.AGENT if kind == "kill-rank" and process is not None:
            return KillProcess(process=process)
        case Hand.AGENT:
            return InjectHere(kind=kind, target=injection.target, process=process)
        case Hand.TRAINER if process is not None:
            return Tell(process=process, order=InjectFailure(kind=kind))
        case _:
            return None  # the launcher's or the supervisor's: this node has only said when


class Injections:
    """The injections of this node that are not spent: waiting for their moment, then for the supervisor's InjectionAck."""

    def __init__(self) -> None:
        self._waiting: dict[int, Inject] = {}
        self._due: dict[int, Inject] = {}

    def __bool__(self) -> bool:
        """Returns whether any waits for its moment."""
        return bool(self._waiting)

    def holds(self, ranks: Collection[int]) -> dict[int, int]:
        """Returns the step that each of this node's ranks must not leave yet; ranks that no injection waits for are not in it."""
        found: dict[int, int] = {}
        for injection in (*self._waiting.values(), *self._due.values()):
            fault = FAULTS[injection.kind]
            if injection.step == NO_STEP or injection.kind == CORRUPT_REPLICA or fault.hand not in (Hand.AGENT, Hand.TRAINER):
                continue  # this agent does not carry it out, or not alone
            for rank in ranks if fault.target is Target.NODE else {injection.target}.intersection(ranks):
                found[rank] = min(injection.step, found.get(rank, injection.step))
        return found

    def add(self, injection: Inject) -> None:
        """Notes the injection; one that is known already (they are sent again with every recovery) changes nothing."""
        if injection.injection_id not in self._due:
            self._waiting[injection.injection_id] = injection

    def take_due(self, heads: Mapping[int, Head], now_ns: int) -> list[int]:
        """Returns the ids of those whose moment has come; from then on they wait for the supervisor."""
        due = [each for each in self._waiting.values() if is_due(each, heads, now_ns)]
        for injection in due:
            self._due[injection.injection_id] = self._waiting.pop(injection.injection_id)
        return [injection.injection_id for injection in due]

    def acknowledged(self, injection_id: int) -> Inject | None:
        """Returns the injection that is to be carried out now; it is spent. None for an id that is not this node's.

        It may be another node that has noticed its moment: replicas are corrupted where they are.
        """
        waiting = self._waiting.get(injection_id)
        if waiting is not None and waiting.kind == CORRUPT_REPLICA:
            self._due[injection_id] = self._waiting.pop(injection_id)
        return self._due.pop(injection_id, None)
