"""Injected failures: armed by configuration or request, spent when an agent announces that one is due. Over JobState."""

from deadpool.proto import messages
from deadpool.proto.config import INJECTION_KINDS, Injection
from deadpool.supervisor.commands import Answer
from deadpool.supervisor.events import InjectRequested
from deadpool.supervisor.state import Armed, JobState, Phase

_MAX_AGE_S = 60.0  # a failure later than this after an injection struck is not its doing


def inject_requested(state: JobState, request: InjectRequested) -> None:
    error = _target_error(state, request.kind, request.target)
    if not error:
        injection_id = max(state.armed, default=-1) + 1
        injection = Injection(injection_id=injection_id, kind=request.kind, target=request.target, step=request.step)
        state.armed[injection_id] = Armed(injection=injection)
        state.note("injection_armed", kind=request.kind, target=request.target, step=request.step)
        state.broadcast(state.armed[injection_id].order())
    state.outbox.append(Answer(cause=state.cause, event_id=request.event_id, error=error))


def _target_error(state: JobState, kind: str, target: int) -> str:
    """Returns why this cannot be injected, "" when it can."""
    if kind not in INJECTION_KINDS:
        return f"unknown kind {kind!r}; known: {', '.join(INJECTION_KINDS)}"
    if state.phase is Phase.END:
        return "the job has ended"
    if kind == "kill-rank" and not 0 <= target < state.config.world_size:
        return f"there is no rank {target}: ranks are 0 to {state.config.world_size - 1}"
    indices = [node.index for node in state.roster.live()]
    if kind == "kill-node" and target not in indices:
        return f"there is no live node {target}: live ones are {', '.join(map(str, indices)) or 'none'}"
    return ""


def injection_due(state: JobState, node_id: str, due: messages.InjectionDue, now_s: float) -> None:
    armed = state.armed.get(due.injection_id)
    if armed is None or armed.spent:
        return
    armed.spent = True
    at_s = due.at_ns / 1e9
    ours = state.config.standalone and now_s - _MAX_AGE_S <= at_s <= now_s
    armed.at_s = at_s if ours else now_s
    state.note("injection", kind=armed.injection.kind, target=armed.injection.target, node=node_id)
    state.send(node_id, messages.InjectionAck(injection_id=due.injection_id))


def struck_at(state: JobState, kind: str, target: int, now_s: float) -> float:
    """Returns when this failure happened: when its injection struck, if it was injected, else now."""
    for armed in state.armed.values():
        matches = armed.injection.kind == kind and armed.injection.target == target
        if matches and armed.spent and not armed.explained and now_s - armed.at_s <= _MAX_AGE_S:
            armed.explained = True
            return armed.at_s
    return now_s
