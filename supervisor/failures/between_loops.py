"""The ranks were released from a step loop and come to another one. Who is missed there? Over JobState.

No step of the next loop is made before every rank is there, so a failure on the way costs what the script has done since the last
loop, and no step: all ranks come back from the state with which that one has ended.
"""

from deadpool.proto.messages import RankReopened
from deadpool.supervisor.failures.handling import late, missed
from deadpool.supervisor.model.failure import Leaver
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.recovery.running import begin_next_loop


def reopened(state: JobState, message: RankReopened, now_s: float) -> None:
    """A rank has come to its next loop, where it waits for the others."""
    if state.phase is not Phase.FINISH or message.step != state.progress.released_step:
        return  # said again
    ranks, rank = state.roster.playing(), state.roster.ranks[message.rank]
    rank.finished, rank.reopened = False, True
    gone = sorted(state.recovery.holders_lost)
    for each in ranks:
        if each.done:  # its script has ended, where that of others has not
            state.failures.leavers[each.rank] = Leaver(node_id=each.node_id, rank=each.rank, step=message.step, at_s=now_s)
    if state.failures.leavers:
        missed(state, now_s)
    elif gone:
        late(state, f"{', '.join(gone)} lost, which should hold replicas", gone[0], now_s)
    elif all(each.reopened for each in ranks):
        begin_next_loop(state)
