"""The drill: at the boundaries that --drill-at names all ranks go back by one step, by each way there is. Over JobState.

    all ranks wait at S_k --a way begins--> a recovery to S_k-1, as after a failure --step k-1 again--> all ranks wait at S_k
                          --no way is left--> DrillOver: they go on

What S_k-1 held, what the step gave and what S_k held then, the ranks write down each time (trainer_hooks/drill); whoever reads
that compares. An event `drilled` says which generation has come by which way.
"""

from typing import assert_never

from deadpool.proto.drill import WayBack
from deadpool.proto.messages import DrillOver, DrillReady, KillRanks
from deadpool.supervisor.model.drill import Drill
from deadpool.supervisor.model.failure import Failure, FailureClass
from deadpool.supervisor.model.membership import NodeRole, choose_spare
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.recovery import protocol
from deadpool.supervisor.recovery.orders import warm_up

_CHECKPOINT_TIMEOUT_S = 30.0  # from the moment at which nothing else is left to do until the checkpoint of S_k-1 is there


def ready(state: JobState, message: DrillReady, now_s: float) -> None:
    """A rank waits at S_step. Once all do, in the same generation, the next way back is taken."""
    step = message.step
    if step in state.drill.over:  # a process that came later does not know
        _say_over(state, step)
        return
    if state.drill.step != step:
        state.drill = Drill(step=step, left=[way for way in WayBack if way is not WayBack.NONE], over=state.drill.over)
    drill = state.drill
    drill.ready[message.rank] = message.generation
    everyone = [drill.ready.get(rank.rank) for rank in state.roster.playing()]
    if state.phase is Phase.RUN and all(generation == state.generation for generation in everyone):
        state.note("drilled", step=step, way=drill.way.value)
        drill.ready.clear()
        drill.without = ""
        go_on(state, now_s)


def go_on(state: JobState, now_s: float) -> None:
    """Takes the first of the ways that are left and possible; waits for the checkpoint where that is missing."""
    drill = state.drill
    while drill.left:
        way = drill.left[0]
        if way is WayBack.CHECKPOINT and state.config.checkpoint_dir and state.protection.checkpoint_step != drill.step - 1:
            drill.checkpoint_deadline_s = now_s + _CHECKPOINT_TIMEOUT_S
            return
        drill.left.pop(0)
        obstacle = _obstacle(state, way)
        if not obstacle:
            _take(state, way, now_s)
            return
        state.note("drill_left_out", step=drill.step, way=way.value, reason=obstacle)
    drill.over.add(drill.step)
    _say_over(state, drill.step)
    if state.config.drill_only and drill.over >= set(state.config.drill_at):
        state.end(0, "the drill is over", now_s=now_s)


def checkpoint_known(state: JobState, now_s: float) -> None:
    """A persistent checkpoint was written, or could not be."""
    if state.drill.checkpoint_deadline_s is not None and state.protection.checkpoint_step == state.drill.step - 1:
        state.drill.checkpoint_deadline_s = None
        go_on(state, now_s)


def checkpoint_missing(state: JobState, now_s: float) -> None:
    drill = state.drill
    drill.checkpoint_deadline_s = None
    way = drill.left.pop(0)
    reason = f"no checkpoint of step {drill.step - 1} was written within {_CHECKPOINT_TIMEOUT_S:g} s"
    state.note("drill_failed", step=drill.step, way=way.value, reason=reason)
    go_on(state, now_s)


def _say_over(state: JobState, step: int) -> None:
    for node in state.roster.members():
        state.send(node.node_id, DrillOver(generation=state.generation, step=step))


def _obstacle(state: JobState, way: WayBack) -> str:
    """Returns why this job cannot be taken back that way, "" when it can."""
    match way:
        case WayBack.SPARE:
            return "" if choose_spare(state.roster.nodes)[0] is not None else "there is no spare node (--spares)"
        case WayBack.CHECKPOINT:
            return "" if state.config.checkpoint_dir else "there is no --checkpoint-dir"
        case WayBack.NONE | WayBack.IN_PLACE | WayBack.PROCESS:
            return ""
        case _:
            assert_never(way)


def _take(state: JobState, way: WayBack, now_s: float) -> None:
    drill = state.drill
    drill.way = way
    state.recovery.branch(generation=state.generation + 1, resume_step=drill.step - 1)  # S_step is of a dead branch
    cause = f"drill: back from step {drill.step} to {drill.step - 1}, {way.value}"
    state.note("drill", step=drill.step, way=way.value)
    match way:
        case WayBack.NONE | WayBack.IN_PLACE:
            _recover(state, cause, (), now_s)
        case WayBack.PROCESS:
            ranks = [rank for rank in state.roster.ranks if rank.rank % 2 or len(state.roster.ranks) == 1]
            for rank in ranks:
                order = KillRanks(generation=state.generation, ranks=(rank.rank,), reason=cause)
                state.send(rank.node_id, order)
                state.roster.retire(rank)
            _recover(state, cause, tuple(rank.rank for rank in ranks), now_s)
        case WayBack.SPARE:
            _move_to_spare(state, cause, now_s)
        case WayBack.CHECKPOINT:
            _recover(state, cause, tuple(rank.rank for rank in state.roster.ranks), now_s, from_scratch=True)
        case _:
            assert_never(way)


def _recover(state: JobState, cause: str, ranks: tuple[int, ...], now_s: float, *, from_scratch: bool = False) -> None:
    failure = Failure(cause=cause, failure_class=FailureClass.PLANNED, ranks=ranks, at_s=now_s)
    protocol.recover(state, failure, now_s=now_s, from_scratch=from_scratch)


def _move_to_spare(state: JobState, cause: str, now_s: float) -> None:
    """The last member counts as lost: its processes are killed, its vault is not looked at. Then it is a spare."""
    node = state.roster.members()[-1]
    ranks = state.roster.vacate(node.node_id, NodeRole.DRAINED)
    state.send(node.node_id, KillRanks(generation=state.generation, ranks=ranks, reason=cause))
    state.drill.without = node.node_id
    _recover(state, cause, ranks, now_s)
    node.role, node.drained = NodeRole.SPARE, False
    if state.phase is not Phase.END:
        warm_up(state, node.node_id)
