"""From the end of one step loop to the beginning of the next: what a failure on the way, and soon after it, leads to."""

import json

import pytest
from supervising import Scene

from deadpool.proto import messages
from deadpool.proto.messages import NO_STEP
from deadpool.supervisor.core import Job
from deadpool.supervisor.journal.journal import event_line, parse_event
from deadpool.supervisor.model.phase import Phase


@pytest.fixture
def between() -> Scene:
    """The first loop has ended with S_8; all ranks are released."""
    scene = Scene()
    scene.start(commit_step=8)
    finish(scene, 8)
    scene.forget()
    return scene


def finish(scene: Scene, step: int) -> None:
    for rank in range(4):
        scene.say(scene.home(rank), messages.RankFinished(generation=scene.state.generation, rank=rank, step=step))
    assert scene.state.phase is Phase.FINISH
    assert {order.step for _, order in scene.took(messages.Release)} == {step}


def reopen(scene: Scene, *ranks: int, step: int = 8) -> None:
    for rank in ranks:
        scene.say(scene.home(rank), messages.RankReopened(generation=scene.state.generation, rank=rank, step=step))


def prepare(scene: Scene, rank: int, *, earliest: int, latest: int, live_step: int = NO_STEP, commit_step: int = 8) -> None:
    prepared = messages.RankPrepared(
        generation=scene.state.generation,
        rank=rank,
        live_generation=1 if live_step != NO_STEP else 0,
        live_step=live_step,
        commit_step=commit_step,
        earliest=earliest,
        latest=latest,
    )
    scene.say(scene.home(rank), prepared)


def killed_ranks(scene: Scene) -> set[int]:
    return {rank for _, order in scene.took(messages.KillRanks) for rank in order.ranks}


def test_the_next_loop_begins_once_every_rank_is_there(between: Scene) -> None:
    reopen(between, 0, 1, 2)
    assert not between.took(messages.BeginLoop)
    reopen(between, 3)
    assert [(node, order.step) for node, order in between.took(messages.BeginLoop)] == [(0, 8), (1, 8)]
    assert between.state.phase is Phase.RUN
    between.forget()
    finish(between, 16)


def test_what_is_said_again_of_a_loop_that_is_over_changes_nothing(between: Scene) -> None:
    reopen(between, 0, 1, 2, 3)
    between.say(0, messages.RankFinished(generation=1, rank=0, step=8))
    assert not between.state.roster.ranks[0].finished
    finish(between, 16)
    reopen(between, 0, 1, 2, 3)
    assert between.state.phase is Phase.FINISH


def test_a_failure_on_the_way_brings_all_back_to_the_end_of_the_loop_in_fresh_processes(between: Scene) -> None:
    reopen(between, 0, 1)
    between.killed(3, commit_step=8)
    assert killed_ranks(between) == {0, 1, 2}
    assert {order.hint_step for _, order in between.took(messages.Assign)} == {7}
    for rank in (0, 1, 2):
        between.killed(rank)
    between.open_store()
    for rank in range(4):
        prepare(between, rank, earliest=0, latest=8)
    for node in (0, 1, 2):
        between.report(node, *between.vault(node, 8))
    assert {order.resume_step for _, order in between.took(messages.Reform)} == {8}
    between.bring_up(8)
    finish(between, 8)
    reopen(between, 0, 1, 2, 3)
    assert between.state.phase is Phase.RUN


def test_in_the_first_step_of_a_later_loop_nobody_can_go_back_to_its_beginning(between: Scene) -> None:
    """What the script has done before it is in no snapshot: fresh processes come from the end of the loop before."""
    reopen(between, 0, 1, 2, 3)
    between.forget()
    between.killed(3, commit_step=8)
    between.open_store()
    for rank in (0, 1, 2):
        prepare(between, rank, earliest=9, latest=16)
    prepare(between, 3, earliest=0, latest=8)
    for node in (0, 1, 2):
        between.report(node, *between.vault(node, 8))
    assert not between.took(messages.Reform)
    assert killed_ranks(between) == {0, 1, 2}
    between.forget()
    for rank in (0, 1, 2):
        between.killed(rank)
    assert {order.hint_step for _, order in between.took(messages.Assign)} == {7}
    for rank in (0, 1, 2):
        prepare(between, rank, earliest=0, latest=8)
    for node in (0, 1, 2):
        between.report(node, *between.vault(node, 8))
    assert {order.resume_step for _, order in between.took(messages.Reform)} == {8}
    assert between.state.generation == 2


def test_a_joiner_that_was_told_too_little_is_replaced_by_one_that_knows_the_plan(between: Scene) -> None:
    """A node is lost with what it knew: nobody has said yet that the second loop had begun, and steps were committed in it."""
    reopen(between, 0, 1, 2, 3)
    between.forget()
    between.lose(1)
    assert {order.hint_step for _, order in between.took(messages.Assign)} == {7}
    between.open_store()
    for rank in (0, 1):
        prepare(between, rank, earliest=9, latest=16, live_step=11, commit_step=11)
    for rank in (2, 3):
        between.say(2, messages.RankJoined(generation=2, rank=rank, pid=2000 + rank))
        prepare(between, rank, earliest=0, latest=8)
    for node in (0, 2):
        between.report(node, *between.vault(node, 11))
    assert killed_ranks(between) == {2, 3}
    between.forget()
    for rank in (2, 3):
        between.killed(rank)
    assert {order.hint_step for _, order in between.took(messages.Assign)} == {10}
    for rank in (2, 3):
        prepare(between, rank, earliest=9, latest=16)
    between.report(2)
    assert {order.resume_step for _, order in between.took(messages.Reform)} == {11}


def test_a_holder_that_was_lost_on_the_way_is_missed_by_the_next_loop() -> None:
    scene = Scene(nnodes=1, spares=2)
    scene.start(commit_step=8)
    for rank in range(2):
        scene.say(0, messages.RankFinished(generation=1, rank=rank, step=8))
    scene.lose(1)
    scene.hello(1)  # it comes back with nothing
    assert scene.state.generation == 1
    reopen(scene, 0)
    assert scene.state.phase is Phase.RECOVER


@pytest.mark.parametrize("ends_first", [True, False])
def test_a_rank_whose_script_ends_where_that_of_others_goes_on_is_the_cause_of_what_follows(
    between: Scene, ends_first: bool
) -> None:
    if ends_first:
        between.exits(3, 0, script_ended=True)
        reopen(between, 0)
    else:
        reopen(between, 0)
        between.exits(3, 0, script_ended=True)
    assert [note.fields["ranks"] for note in between.notes("failure")] == [(3,)]
    assert between.state.phase is Phase.RECOVER


def test_a_rank_that_does_not_come_is_looked_for_once_another_one_waits(between: Scene) -> None:
    between.stall(31.0, sure=True)
    assert not between.took(messages.ReportCalls)
    reopen(between, 0)
    between.stall(31.0, sure=True)
    assert between.took(messages.ReportCalls)


def test_a_supervisor_that_falls_there_knows_all_of_it_again(between: Scene) -> None:
    reopen(between, 0, 1, 2)
    job = Job(between.config)
    for event, now_s in between.past:
        if event is None:
            job.tick(now_s=now_s)
        else:
            line = json.loads(event_line(event, now_s=now_s))
            job.handle(parse_event(line["event"]), now_s=now_s)
    assert job.state == between.state
    assert [rank.reopened for rank in job.state.roster.ranks] == [True, True, True, False]
