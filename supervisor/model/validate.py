"""What must hold between the parts of a job's state after every event. For the simulation and the tests: the job never asks."""

from collections.abc import Iterator

from deadpool.proto.messages import NO_STEP
from deadpool.supervisor.model.membership import NodeRole, Rank
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.state import JobState
from deadpool.supervisor.model.timeline import Stage

_FROM_SCRATCH = (Stage.SPARE, Stage.STORE, Stage.BEGIN)
_FROM_STATES = (Stage.SPARE, Stage.QUIESCE, Stage.PLAN, Stage.REFORM, Stage.RESTORE, Stage.FIRST_STEP)


def validate(state: JobState) -> None:
    """Raises AssertionError that says all that does not hold."""
    broken = [
        *_phase(state),
        *_attempt(state),
        *_seats(state),
        *_ranks(state),
        *_recovery(state),
        *_account(state),
        *_rest(state),
    ]
    assert not broken, f"generation {state.generation}, {state.phase}: {'; '.join(broken)}"


def _phase(state: JobState) -> Iterator[str]:
    attempt, story, ending = state.recovery.attempt, state.recovery.story, state.ending
    if (attempt is not None) != (state.phase in (Phase.START, Phase.RECOVER)):
        yield f"a generation is brought up in the phases start and recover, in no other: {attempt}"
    if story is None and state.phase is Phase.RECOVER and state.hooked:
        yield "a recovery has no story"
    if story is not None and state.phase not in (Phase.START, Phase.RECOVER):
        yield "a story goes on though all ranks run"
    if (ending.exit_code is not None) != (state.phase is Phase.END):
        yield f"exit code {ending.exit_code}"
    if ending.over and state.phase is not Phase.END:
        yield "it is over before its end"
    if ending.root_cause and ending.exit_code not in (1, 2):
        yield f"exit code {ending.exit_code} has a root cause"
    if (state.generation == 0) != (state.phase is Phase.ASSEMBLE) and state.phase is not Phase.END:
        yield "generations begin when the job starts"


def _account(state: JobState) -> Iterator[str]:
    account = state.account
    if min(account.spent_s.values()) < -1e-6:
        yield f"time was spent backwards: {account.spent_s}"
    if account.mark_s is not None and abs(sum(account.spent_s.values()) - (account.mark_s - account.began_s)) > 1e-3:
        yield f"{account.mark_s - account.began_s} s are booked as {account.spent_s}"


def _attempt(state: JobState) -> Iterator[str]:
    attempt = state.recovery.attempt
    if attempt is None:
        return
    if attempt.generation != state.generation:
        yield f"generation {attempt.generation} is brought up"
    if attempt.stage not in (_FROM_SCRATCH if attempt.from_scratch else _FROM_STATES):
        yield f"stage {attempt.stage}, from_scratch {attempt.from_scratch}"
    if (state.phase is Phase.START) != (attempt.from_scratch and attempt.stage is not Stage.SPARE):
        yield f"stage {attempt.stage} in this phase"
    if attempt.stage is not Stage.SPARE and state.roster.vacancies():
        yield f"stage {attempt.stage} with vacant seats"
    if attempt.stage in (Stage.BEGIN, Stage.REFORM, Stage.RESTORE, Stage.FIRST_STEP) and attempt.store is None:
        yield f"stage {attempt.stage} without a store"
    if attempt.stage in _FROM_STATES[3:] and attempt.behind[Stage.QUIESCE]:
        yield f"stage {attempt.stage}, and rank {attempt.behind[Stage.QUIESCE]} is not prepared"
    if attempt.killing and not attempt.kill_deadline_s:
        yield "ranks are killed without a deadline"
    if not attempt.drained <= state.recovery.drained.keys():
        yield f"ranks {attempt.drained} are awaited on a drained node, {state.recovery.drained} are there"


def _seats(state: JobState) -> Iterator[str]:
    roster = state.roster
    seated = [node_id for node_id in roster.seats if node_id is not None]
    if len(seated) != len(set(seated)):
        yield f"a node has two seats: {roster.seats}"
    members = {node.node_id for node in roster.nodes.values() if node.role is NodeRole.MEMBER}
    if members != set(seated):
        yield f"members are {members}, seated are {seated}"
    if roster.live_count != len(roster.live()):
        yield f"{roster.live_count} nodes are said to live, {len(roster.live())} do"
    if roster.vacancies() and state.phase in (Phase.START, Phase.RUN):
        yield "a seat is vacant"
    if any(roster.seats[seat] is not None for seat in roster.excluded) or 0 in roster.excluded:
        yield f"seats {roster.excluded} are excluded: {roster.seats}"
    if roster.excluded and not state.hooked:
        yield "seats are excluded in a job without hooks"
    for node_rank, node_id in enumerate(roster.seats):
        if node_id is not None and {rank.node_id for rank in roster.of_seat(node_rank)} != {node_id}:
            yield f"the ranks of seat {node_rank} live elsewhere than {node_id}"


def _ranks(state: JobState) -> Iterator[str]:
    roster = state.roster
    if roster.joiners != {rank.rank for rank in roster.ranks if rank.joining}:
        yield f"ranks {roster.joiners} are said to be joining"
    if roster.stopped != {rank.rank for rank in roster.ranks if rank.stopped_s is not None}:
        yield f"ranks {roster.stopped} are said to be stopped"
    if roster.absent != {rank.rank for rank in roster.ranks if not rank.present}:
        yield f"ranks {roster.absent} are said to have no process"
    for rank in roster.playing():
        if rank.stale and state.phase is Phase.RUN:
            yield f"rank {rank.rank} has a step to make since it was excluded"
    for rank in roster.ranks:
        if rank.present and rank.node_id not in roster.seats:
            yield f"rank {rank.rank} has a process on {rank.node_id}, which has no seat"
        if not rank.present and _has_process(rank):
            yield f"rank {rank.rank} has no process, and {rank}"
        if rank.present and rank.done:
            yield f"rank {rank.rank} is done, and has a process"
        if rank.since > state.generation:
            yield f"rank {rank.rank} has a process of generation {rank.since}"
        excluded = rank.rank // roster.nproc_per_node in roster.excluded
        if state.phase in (Phase.RUN, Phase.FINISH) and not (rank.present or rank.done or excluded):
            yield f"rank {rank.rank} has no process"
        if rank.joining and state.phase in (Phase.START, Phase.RUN, Phase.FINISH):
            yield f"rank {rank.rank} is still joining"
        if rank.reopened and (rank.finished or not rank.present or state.phase not in (Phase.FINISH, Phase.END)):
            yield f"rank {rank.rank} waits for its next loop"
        if rank.yielded_known and rank.yielded == NO_STEP:
            yield f"rank {rank.rank}: nothing is known of what its script has had"


def _has_process(rank: Rank) -> bool:
    """Returns whether something is said of a process; a rank that is done may have finished."""
    finished = rank.finished and not rank.done
    return bool(rank.pid or rank.joining or finished or rank.joined_s is not None or rank.stopped_s is not None)


def _recovery(state: JobState) -> Iterator[str]:
    recovery, nodes = state.recovery, state.roster.nodes
    generations = [sent.generation for sent in recovery.lineage]
    if generations != sorted(generations) or max(generations, default=0) > state.generation + 1:
        yield f"lineage {recovery.lineage}"
    if recovery.draining and recovery.draining not in nodes:
        yield f"{recovery.draining} is drained, and unknown"
    for node_id, hot in recovery.hot.items():
        if nodes[node_id].role is not NodeRole.SPARE:
            yield f"{node_id} is hot for seat {hot.seat}, and is {nodes[node_id].role}"
        if tuple(rank.rank for rank in state.roster.of_seat(hot.seat)) != hot.ranks:
            yield f"{node_id} is hot for ranks {hot.ranks} of seat {hot.seat}"
    for node_id, hot in recovery.hot_members.items():
        own = {rank.rank for rank in state.roster.of_node(node_id)}
        if not (hot.ranks and own >= set(hot.ranks)):
            yield f"{node_id} has ranks {own}, and is hot for {hot.ranks} of its own"
    if len({hot.seat for hot in recovery.hot.values()}) < len(recovery.hot):
        yield f"two spares are hot for one seat: {recovery.hot}"
    if not recovery.swaps.keys() <= set(state.roster.seats):
        yield f"{set(recovery.swaps)} are to be swapped, in seats are {state.roster.seats}"
    gone = {node_id for node_id in recovery.drained.values() if not nodes[node_id].live}
    if gone:
        yield f"processes are awaited on {gone}, which is lost"
    if not recovery.holders <= nodes.keys():
        yield f"replicas are on {recovery.holders}"
    if not 0 <= recovery.fruitless <= state.config.max_recoveries_without_progress + 1:
        yield f"{recovery.fruitless} recoveries without progress"
    if [record.generation for record in recovery.records] != sorted(record.generation for record in recovery.records):
        yield "recoveries are not in order"


def _rest(state: JobState) -> Iterator[str]:
    failures, progress = state.failures, state.progress
    if state.phase is Phase.END and failures.broken_collective is not None:
        yield "a broken collective is to be acted on"
    if failures.inquiry is not None and failures.inquiry.generation > state.generation:
        yield f"an inquiry about generation {failures.inquiry.generation}"
    if progress.assembled_s is None and state.phase not in (Phase.ASSEMBLE, Phase.END):
        yield "it has started without enough nodes"
    if state.phase is Phase.FINISH and progress.released_step == NO_STEP:
        yield "its ranks were released from no loop"
    if not state.recovery.holders_lost <= state.recovery.holders:
        yield f"lost are {state.recovery.holders_lost} of the holders {state.recovery.holders}"
    if any(not 0 <= number < len(state.roster.ranks) for number in state.protection.corrupted):
        yield f"corrupted ranks {state.protection.corrupted}"
