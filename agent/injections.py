"""When an injected failure strikes: in the middle of the target's step. Pure."""

from collections.abc import Mapping

from deadpool.proto.call_record import Head
from deadpool.proto.messages import NO_STEP, Inject

KILL_NODE = "kill-node"
KILL_RANK = "kill-rank"


def is_due(injection: Inject, heads: Mapping[int, Head], now_ns: int) -> bool:
    """Returns whether the injection's moment has come: half a typical step into its step, or anywhere behind it.

    `heads`: of this node's ranks. kill-node looks at the lowest of them; a node without ranks waits until it has some.
    """
    if injection.step == NO_STEP:
        return True
    if not heads:
        return False
    head = heads.get(min(heads) if injection.kind == KILL_NODE else injection.target)
    if head is None or head.step < injection.step or head.step_began_ns == 0:
        return False
    return head.step > injection.step or now_ns - head.step_began_ns >= head.typical_step_ns // 2


class Injections:
    """The injections of this node that are not spent: waiting for their moment, then for the supervisor's InjectionAck."""

    def __init__(self) -> None:
        self._waiting: dict[int, Inject] = {}
        self._due: dict[int, Inject] = {}

    def __bool__(self) -> bool:
        """Returns whether any waits for its moment."""
        return bool(self._waiting)

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
        """Returns the injection that strikes now; it is spent. None for an id that is not this node's."""
        return self._due.pop(injection_id, None)
