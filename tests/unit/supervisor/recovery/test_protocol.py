"""Recoveries as short stories: what the agents say, what they are told to do."""

import pytest
from supervising import Scene, snapshot, too_often

from deadpool.proto import messages
from deadpool.proto.config import OnLoss
from deadpool.proto.messages import NO_STEP, SourceKind
from deadpool.supervisor.model.phase import Phase


def test_killed_rank_comes_back_on_its_node_from_its_own_vault() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.forget()
    scene.killed(3, step=5, commit_step=4)
    assert [node for node, _ in scene.took(messages.Quiesce)] == [0, 1, 2]
    ((node, assign),) = scene.took(messages.Assign)
    assert (assign.store_host, assign.store_port) == ("h", 7)  # until Reform says better
    assert (node, [placement.rank for placement in assign.placements]) == (1, [3])
    assert assign.hint_step == 3  # the newest step that all have been through: S_4 is committed

    scene.now_s += 0.4
    plan = scene.recover(step=5, survivors=[0, 1, 2], joiners=[3])
    assert plan.resume_step == 5
    kinds = {source.rank: source.kind for _, order in scene.took(messages.Reform) for source in order.sources}
    assert kinds == {0: SourceKind.LIVE, 1: SourceKind.LIVE, 2: SourceKind.LIVE, 3: SourceKind.VAULT}

    scene.now_s += 0.1
    scene.bring_up(5)
    (record,) = scene.state.recovery.records
    assert scene.state.phase is Phase.RUN
    assert (record.failure_class, record.ranks, record.spare, record.resume_step) == ("transient", (3,), "", 5)
    assert record.steps_reexecuted == 1
    assert record.survivors_kept_processes
    assert record.committed_steps_lost == 0
    assert record.phases_s.quiesce == pytest.approx(0.4)
    assert record.total_s == pytest.approx(0.5)


def test_what_ranks_say_together_is_what_each_has_said() -> None:
    """A node's ranks are prepared, and later past all that follows, in one message: the job is in the same state."""
    scenes = [Scene(), Scene()]
    for scene in scenes:
        scene.start(commit_step=4)
        scene.killed(3, step=5, commit_step=4)
        scene.open_store()
    each, together = scenes
    prepared = [
        messages.RankPrepared(generation=2, rank=rank, live_generation=1, live_step=5, commit_step=4) for rank in range(3)
    ]
    joiner = messages.RankPrepared(generation=2, rank=3, live_generation=0, live_step=NO_STEP, commit_step=NO_STEP)
    each.say(0, *prepared[:2])
    each.say(1, prepared[2], joiner)
    together.say(0, messages.RanksSaid(prepared=tuple(prepared[:2])))
    together.say(1, messages.RanksSaid(prepared=(prepared[2], joiner)))
    for scene in scenes:
        for node in range(3):
            scene.report(node, *scene.vault(node, 5))
        assert scene.took(messages.Reform)
    each.bring_up(5)
    for node in range(2):
        ranks = range(2 * node, 2 * node + 2)
        said = messages.RanksSaid(
            reformed=tuple(messages.RankReformed(generation=2, rank=rank) for rank in ranks),
            restored=tuple(messages.RankRestored(generation=2, rank=rank, step=5, bytes_restored=0) for rank in ranks),
            resumed=tuple(
                messages.RankResumed(generation=2, rank=rank, step=6, at_ns=int(1e9 * together.now_s)) for rank in ranks
            ),
        )
        together.say(node, said)
    assert together.state.phase is Phase.RUN
    assert together.state == each.state


def test_lost_node_is_replaced_by_the_spare_from_replicas() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.forget()
    scene.lose(1)
    ((node, assign),) = scene.took(messages.Assign)
    assert (node, [placement.rank for placement in assign.placements]) == (2, [2, 3])
    assert [node for node, _ in scene.took(messages.Quiesce)] == [0, 2]
    scene.recover(step=4, survivors=[0, 1], joiners=[2, 3])
    sources = {source.rank: source for _, order in scene.took(messages.Reform) for source in order.sources}
    assert sources[2].kind is sources[3].kind is SourceKind.REPLICA
    assert sources[2].endpoint is not None
    assert sources[2].endpoint.node_id == "node0"
    scene.bring_up(4)
    (record,) = scene.state.recovery.records
    assert (record.failure_class, record.node, record.ranks, record.spare) == ("permanent", "node1", (2, 3), "node2")


def test_new_member_keeps_a_stand_in_and_holds_replicas() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.forget()
    scene.lose(1)
    assert scene.took(messages.WarmUp) == [(2, messages.WarmUp(standins=1))]
    plan = scene.recover(step=4, survivors=[0, 1], joiners=[2, 3])
    holders = {p.rank: [h.node_id for h in p.holders] for _, o in scene.took(messages.Reform) for p in o.placements}
    assert holders == {0: ["node2"], 1: ["node2"], 2: ["node0"], 3: ["node0"]}
    assert plan.commit_step == 4


def test_rank_then_node_in_one_run_are_two_recoveries() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.killed(3)
    scene.recover(step=5, survivors=[0, 1, 2], joiners=[3])
    scene.bring_up(5)
    scene.forget()
    scene.lose(0)
    scene.open_store()
    scene.prepare(2, 3, live_step=8, commit_step=8, live_generation=2)
    scene.prepare(0, 1)
    scene.report(1, *[each for rank in range(4) for each in _both(rank, 8, 2)])
    scene.report(2)
    ((_, plan), _) = scene.took(messages.Reform)
    assert plan.resume_step == 8
    scene.bring_up(8)
    assert [record.generation for record in scene.state.recovery.records] == [2, 3]
    assert scene.state.generation == 3


def _both(rank: int, step: int, generation: int) -> list[messages.Slot]:
    kind = messages.SlotKind.SNAPSHOT if rank >= 2 else messages.SlotKind.REPLICA
    return [messages.Slot(kind=kind, rank=rank, generation=generation, step=step)]


def test_second_failure_during_recovery_starts_over_from_the_same_state() -> None:
    scene = Scene(spares=2)
    scene.start(commit_step=4)
    scene.killed(3)
    scene.open_store()
    scene.prepare(0, 1, 2, live_step=5, commit_step=4)
    scene.forget()
    scene.lose(1)
    assert scene.state.generation == 3
    ((node, assign),) = scene.took(messages.Assign)
    assert (node, [placement.rank for placement in assign.placements]) == (2, [2, 3])
    scene.recover(step=5, survivors=[0, 1], joiners=[2, 3])
    scene.bring_up(5)
    (record,) = scene.state.recovery.records
    assert record.generation == 3
    assert record.ranks == (2, 3)
    assert "rank 3 on node1" in record.cause
    assert "node1 lost" in record.cause
    assert record.resume_step == 5


@pytest.mark.parametrize("stage", ["reform", "restore"])
def test_a_stage_that_fails_is_tried_again_with_the_same_members(stage: str) -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.killed(3)
    scene.recover(step=5, survivors=[0, 1, 2], joiners=[3])
    scene.forget()
    scene.say(0, messages.RankFailed(generation=2, rank=0, phase=stage, error="connection refused"))
    assert scene.state.generation == 3
    assert not scene.took(messages.Assign)
    scene.recover(step=5, survivors=[0, 1, 2], joiners=[3])
    scene.bring_up(5)
    assert scene.state.phase is Phase.RUN


def test_the_plan_waits_for_the_vault_report_that_follows_the_last_prepared_rank() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.killed(3)
    scene.open_store()
    for node in range(3):
        scene.report(node, *scene.vault(node, 4))
    scene.prepare(0, 1, 2, live_step=5, commit_step=4)
    scene.prepare(3)
    assert not scene.took(messages.Reform)
    scene.report(0, *scene.vault(0, 5))
    assert not scene.took(messages.Reform)
    scene.report(1, *scene.vault(1, 5))
    ((_, plan), _) = scene.took(messages.Reform)
    assert plan.resume_step == 5


def test_ranks_that_are_ahead_go_back() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.killed(3)
    scene.open_store()
    scene.prepare(0, live_step=6, commit_step=5)
    scene.prepare(1, 2, live_step=5, commit_step=5)
    scene.prepare(3)
    for node in range(3):
        scene.report(node, *scene.vault(node, 5))
    ((_, plan), _) = scene.took(messages.Reform)
    assert plan.resume_step == 5
    scene.bring_up(5)
    (record,) = scene.state.recovery.records
    assert record.steps_reexecuted == 2


def test_broken_collective_waits_for_a_root_cause() -> None:
    scene = Scene(broken_collective_grace_s=0.5)
    scene.start(commit_step=4)
    scene.say(0, messages.RankBroken(generation=1, rank=0, error="connection closed by peer"))
    scene.wait(0.3)
    assert scene.state.phase is Phase.RUN
    scene.lose(1)
    scene.wait(1.0)
    assert scene.state.generation == 2
    assert scene.state.recovery.story is not None
    assert scene.state.recovery.story.first.node == "node1"


def test_an_error_on_its_way_out_is_waited_for() -> None:
    """The process that it ends takes its time; its peers see their connections break before."""
    scene = Scene(broken_collective_grace_s=0.5)
    scene.start(commit_step=4)
    scene.say(1, messages.RankRaised(generation=1, rank=2, error="RuntimeError: no"))
    scene.say(0, messages.RankBroken(generation=1, rank=0, error="connection closed by peer"))
    scene.wait(5.0)
    assert scene.state.generation == 1
    scene.say(
        1, messages.RankExited(generation=1, rank=2, pid=scene.state.roster.ranks[2].pid, exit_code=1, error="RuntimeError: no")
    )
    assert scene.state.generation == 2
    assert scene.state.recovery.story is not None
    assert scene.state.recovery.story.causes == ["rank 2 on node1 failed: exit code 1"]


def test_an_error_that_the_script_has_caught_does_not_hold_the_job_up_for_ever() -> None:
    scene = Scene(broken_collective_grace_s=0.5)
    scene.start(commit_step=4)
    scene.say(0, messages.RankBroken(generation=1, rank=0, error="connection closed by peer"))
    scene.say(1, messages.RankRaised(generation=1, rank=2, error="RuntimeError: no"))
    scene.wait(9.9)
    assert scene.state.generation == 1
    scene.wait(0.2)
    assert scene.state.generation == 2


def test_broken_collective_without_a_death_re_forms_the_same_members() -> None:
    scene = Scene(broken_collective_grace_s=0.5)
    scene.start(commit_step=4)
    scene.forget()
    scene.say(0, messages.RankBroken(generation=1, rank=0, error="timed out"))
    scene.wait(0.6)
    assert scene.state.generation == 2
    assert not scene.took(messages.Assign)
    scene.recover(step=5, survivors=[0, 1, 2, 3], joiners=[])
    scene.bring_up(5)
    (record,) = scene.state.recovery.records
    assert record.ranks == ()
    assert record.survivors_kept_processes
    assert record.phases_s.detect == pytest.approx(0.5)


def test_nothing_committed_starts_all_ranks_from_scratch_without_counting() -> None:
    scene = Scene()
    scene.start()
    scene.forget()
    scene.killed(3)
    scene.report(0, snapshot(0, 0))
    scene.report(1, snapshot(2, 0))
    assert not scene.took(messages.StartRanks)
    scene.report(2)
    assert scene.state.generation == 3
    scene.open_store()
    starts = scene.took(messages.StartRanks)
    assert [node for node, _ in starts] == [0, 1]
    assert starts[0][1].restart_count == 0
    scene.say(1, messages.RankJoined(generation=3, rank=2, pid=77))
    assert scene.state.phase is Phase.RUN
    assert len(scene.state.recovery.records) == 1


def test_a_failure_in_the_first_step_starts_all_ranks_from_scratch() -> None:
    """S_0 is committed, but a process that has stepped cannot go back to it: DDP sums otherwise from its second step on."""
    scene = Scene()
    scene.start(commit_step=0)
    scene.forget()
    scene.killed(3)
    scene.open_store()
    scene.prepare(0, 1, 2, live_step=0, commit_step=0)
    scene.prepare(3)
    for node in range(3):
        scene.report(node, *scene.vault(node, 0))
    assert not scene.took(messages.Reform)
    assert scene.state.generation == 3
    scene.open_store()
    assert [node for node, _ in scene.took(messages.StartRanks)] == [0, 1]
    scene.say(1, messages.RankJoined(generation=3, rank=2, pid=77))
    (record,) = scene.state.recovery.records
    assert (record.resume_step, record.committed_steps_lost, record.survivors_kept_processes) == (0, 0, False)


def test_failure_of_a_spare_that_holds_replicas_re_forms_the_job() -> None:
    scene = Scene(nnodes=1, spares=2)
    scene.start(commit_step=4)
    scene.forget()
    scene.lose(2)
    assert scene.state.generation == 1
    scene.lose(1)
    assert scene.state.generation == 2
    assert not scene.took(messages.Assign)


def test_committed_steps_that_are_lost_are_counted_once() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.killed(3)
    scene.open_store()
    scene.prepare(0, 1, 2, commit_step=6)
    scene.prepare(3)
    for node in range(3):
        scene.report(node, *scene.vault(node, 5))
    scene.bring_up(5)
    scene.killed(3, pid=0)
    scene.recover(step=5, survivors=[0, 1, 2], joiners=[3])
    scene.bring_up(5)
    assert [record.committed_steps_lost for record in scene.state.recovery.records] == [1, 0]


def test_a_faulty_node_gives_the_state_that_it_alone_holds() -> None:
    scene = Scene(failure_rules=too_often(0))
    scene.start(commit_step=4)
    scene.killed(3)
    assert scene.state.roster.seats == ["node0", "node2"]
    scene.open_store()
    scene.prepare(0, 1, live_step=5, commit_step=4)
    scene.prepare(2, 3)
    scene.report(0, snapshot(0, 5), snapshot(1, 5))
    scene.report(2)
    scene.forget()
    scene.report(1, snapshot(2, 5), snapshot(3, 5))
    sources = {source.rank: source for _, order in scene.took(messages.Reform) for source in order.sources}
    for rank in (2, 3):
        assert sources[rank].kind is SourceKind.ELSEWHERE
        endpoint = sources[rank].endpoint
        assert endpoint is not None
        assert endpoint.node_id == "node1"


def test_failure_soon_after_a_fresh_start_asks_first_what_there_is() -> None:
    """The ranks may have committed steps since; the supervisor may be the last one to know."""
    scene = Scene()
    scene.start()
    scene.killed(3)
    for node in range(3):
        scene.report(node)
    scene.open_store()
    scene.forget()
    scene.killed(0, generation=3)
    assert scene.state.generation == 4
    assert scene.took(messages.Quiesce)
    scene.recover(step=2, survivors=[1, 2, 3], joiners=[0], generation=3)
    scene.bring_up(2)
    assert scene.state.recovery.records[-1].resume_step == 2


def test_holder_that_was_lost_before_anybody_joined_is_missed_then() -> None:
    scene = Scene(nnodes=1, spares=1)
    scene.start(hooked=False)
    scene.lose(1)
    assert scene.state.generation == 1
    scene.say(0, messages.RankJoined(generation=1, rank=0, pid=1000))
    assert scene.state.generation == 2


def test_a_node_whose_ranks_are_done_leaves_its_seat() -> None:
    scene = Scene()
    scene.start(commit_step=9)
    for rank in range(4):
        scene.say(scene.home(rank), messages.RankFinished(generation=1, rank=rank, step=10))
    scene.exits(2, 0)
    scene.exits(3, 0)
    scene.lose(1)
    scene.hello(1)
    scene.lose(0)
    assert scene.state.roster.seats == ["node1", "node2"]


@pytest.mark.parametrize(
    ("died", "others", "resume_step", "yielded"),
    [
        pytest.param(5, 5, 5, 5, id="within a step that nobody has had"),
        pytest.param(4, 5, 4, 4, id="within its loop body: all go back, and run it again"),
        pytest.param(NO_STEP, 5, 5, 5, id="nobody knows how far it was"),
        pytest.param(6, 6, 5, 6, id="all have had a step that is done again: none has it again"),
        pytest.param(NO_STEP, 6, 5, 5, id="a step is done again that a lost rank may not have had: all have it again"),
        pytest.param(3, 5, 4, 4, id="there is nothing that old to go back to"),
    ],
)
def test_all_ranks_yield_a_step_again_or_none_does(died: int, others: int, resume_step: int, yielded: int) -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.killed(3, step=5, commit_step=4, yielded=died)
    scene.open_store()
    scene.prepare(0, 1, 2, live_step=5, commit_step=4, yielded=others)
    scene.prepare(3)
    for node in (0, 1, 2):
        scene.report(node, *scene.vault(node, 4), *scene.vault(node, 5))
    ((_, plan), _) = scene.took(messages.Reform)
    assert (plan.resume_step, plan.yielded) == (resume_step, yielded)
    assert [note.fields["step"] for note in scene.notes("loop_body_lost")] == ([3] if died == 3 else [])
    scene.bring_up(resume_step)
    assert scene.state.recovery.records[0].committed_steps_lost == 0


def test_a_plan_counts_for_whoever_is_lost_after_it() -> None:
    """All have agreed to have step 5 again: a rank that joins then, and dies before it says anything, is known to be as far."""
    scene = Scene()
    scene.start(commit_step=5)
    scene.killed(3, step=6, commit_step=5, yielded=6)
    scene.open_store()
    scene.prepare(0, 1, 2, live_step=5, commit_step=5, yielded=6)
    scene.prepare(3)
    for node in (0, 1, 2):
        scene.report(node, *scene.vault(node, 5))
    assert scene.took(messages.Reform)[-1][1].yielded == 6
    scene.lose(1)
    scene.open_store()
    scene.prepare(0, 1, live_step=5, commit_step=5, yielded=6)
    scene.prepare(2, 3)
    for node in (0, 2):
        scene.report(node, *scene.vault(node, 5))
    assert scene.took(messages.Reform)[-1][1].yielded == 6


def test_where_all_restart_the_others_lose_their_processes_as_well_and_restore_from_their_vaults() -> None:
    scene = Scene(on_loss=OnLoss.RESTART)
    scene.start(commit_step=4)
    scene.forget()
    scene.lose(1)
    assert {rank for _, order in scene.took(messages.KillRanks) for rank in order.ranks} == {0, 1}
    for rank in (0, 1):
        scene.killed(rank, generation=scene.state.generation)
    assigned = {placement.rank: node for node, order in scene.took(messages.Assign) for placement in order.placements}
    assert assigned == {0: 0, 1: 0, 2: 2, 3: 2}
    scene.recover(step=4, survivors=[], joiners=[0, 1, 2, 3])
    kinds = {source.rank: source.kind for _, order in scene.took(messages.Reform) for source in order.sources}
    assert kinds == {0: SourceKind.VAULT, 1: SourceKind.VAULT, 2: SourceKind.REPLICA, 3: SourceKind.REPLICA}
    scene.bring_up(4)
    (record,) = scene.state.recovery.records
    assert not record.survivors_kept_processes
    assert (record.ranks, record.resume_step, record.committed_steps_lost) == ((0, 1, 2, 3), 4, 0)


def test_a_node_whose_process_was_never_forked_is_listened_to() -> None:
    """Its end is said without a pid, as most of what ranks say."""
    scene = Scene(on_loss=OnLoss.RESTART)
    scene.start(commit_step=4)
    scene.lose(1)
    for rank in (0, 1):
        scene.exits(rank, 137, signal=9, generation=scene.state.generation, pid=0)
    scene.recover(step=4, survivors=[], joiners=[0, 1, 2, 3])
    scene.bring_up(4)
    assert scene.state.phase is Phase.RUN
