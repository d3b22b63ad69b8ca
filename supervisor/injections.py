"""Injected failures: armed by configuration or request, spent when an agent announces that one is due. Over JobState."""

from deadpool.proto import messages
from deadpool.proto.config import INJECTION_KINDS, Injection, not_possible
from deadpool.proto.faults import FAULTS, Hand, Target, names
from deadpool.supervisor.model.commands import Answer, KillSelf
from deadpool.supervisor.model.events import InjectRequested
from deadpool.supervisor.model.membership import choose_spare
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import Armed, JobState

_MAX_AGE_S = 60.0  # a failure later than this after an injection is not its doing


def inject_requested(state: JobState, request: InjectRequested, now_s: float) -> None:
    error = _target_error(state, request.kind, request.target, request.step)
    if not error:
        injection_id = max(state.injections, default=-1) + 1
        injection = Injection(injection_id=injection_id, kind=request.kind, target=request.target, step=request.step)
        state.injections[injection_id] = Armed(injection=injection)
        state.note("injection_armed", kind=request.kind, target=request.target, step=request.step)
        state.broadcast(state.injections[injection_id].order())
        if not FAULTS[request.kind].watched and request.step == messages.NO_STEP:
            _carry_out(state, state.injections[injection_id], now_s)
    state.outbox.append(Answer(cause=state.cause, event_id=request.event_id, error=error))


def _target_error(state: JobState, kind: str, target: int, step: int) -> str:
    """Returns why this cannot be injected, "" when it can."""
    if kind not in INJECTION_KINDS:
        return f"unknown kind {kind!r}; known: {', '.join(INJECTION_KINDS)}"
    if state.phase is Phase.END:
        return "the job has ended"
    fault = FAULTS[kind]
    if fault.netns and not state.config.netns:
        return f"{kind}: the job's nodes have no network of their own; start it with --netns"
    if fault.target is Target.RANK and not 0 <= target < state.config.world_size:
        return f"there is no rank {target}: ranks are 0 to {state.config.world_size - 1}"
    if fault.hand is Hand.TRAINER and not state.hooked and step == messages.NO_STEP:
        return f"{kind}: no rank has called deadpool.join() yet"
    indices = [node.index for node in state.roster.nodes.values() if node.live or not fault.watched]
    if fault.target is Target.NODE and target not in indices:
        return f"there is no live node {target}: live ones are {', '.join(map(str, indices)) or 'none'}"
    return not_possible(kind, target, step)


def injection_due(state: JobState, node_id: str, due: messages.InjectionDue, now_s: float) -> None:
    armed = state.injections.get(due.injection_id)
    if armed is None or armed.spent:
        return
    armed.spent = True
    at_s = due.at_ns / 1e9
    ours = state.config.standalone and now_s - _MAX_AGE_S <= at_s <= now_s
    armed.at_s = at_s if ours else now_s
    kind, target = armed.injection.kind, armed.injection.target
    state.note("injection", kind=kind, target=target, node=node_id)
    if kind == "kill-supervisor":
        state.outbox.append(KillSelf(cause=state.cause))
        return
    for each in _holders(state, target) if kind == "corrupt-replica" else (node_id,):
        state.send(each, messages.InjectionAck(injection_id=due.injection_id))


def step_reached(state: JobState, step: int, now_s: float) -> None:
    """Some rank is in this step: injections that no agent watches for are carried out now."""
    for armed in list(state.injections.values()):
        injection = armed.injection
        if not armed.spent and not FAULTS[injection.kind].watched and step >= injection.step:
            _carry_out(state, armed, now_s)


def _carry_out(state: JobState, armed: Armed, now_s: float) -> None:
    """The launcher hears of it by the event; a spare is killed as any node."""
    armed.spent, armed.at_s = True, now_s
    injection = armed.injection
    state.note("injection", kind=injection.kind, target=injection.target, node="")
    if injection.kind != "kill-spare":
        return
    spare, why = choose_spare(state.roster.nodes)
    if spare is None:
        state.note("injection_failed", kind=injection.kind, reason=why)
        return
    injection_id = max(state.injections) + 1
    kill = Injection(injection_id=injection_id, kind="kill-node", target=state.roster.nodes[spare].index)
    state.injections[injection_id] = Armed(injection=kill)
    state.send(spare, state.injections[injection_id].order())


def _holders(state: JobState, rank: int) -> tuple[str, ...]:
    """Returns the nodes that keep the rank's replicas, as the present generation was told."""
    return state.recovery.keepers.get(rank // state.roster.nproc_per_node, ())


def injected_at(state: JobState, target_kind: Target, target: int, now_s: float) -> float:
    """Returns when this rank or node failed: when the injection was carried out that ends it, if one was, else now."""
    kinds = names(target_kind, ends=True)
    for armed in state.injections.values():
        matches = armed.injection.kind in kinds and armed.injection.target == target
        if matches and armed.spent and not armed.explained and now_s - armed.at_s <= _MAX_AGE_S:
            armed.explained = True
            return armed.at_s
    return now_s
