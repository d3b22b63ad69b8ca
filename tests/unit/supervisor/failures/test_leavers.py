"""Ranks whose scripts end with 0 in their step loop: do the others do so too, or miss them?"""

import pytest
from supervising import Scene

from deadpool.proto import messages
from deadpool.supervisor.model.phase import Phase

CAUSE = "rank 2 on node1 exited with 0 in step 5: its loop was not done, and others wait for it"


def breaks(scene: Scene, rank: int) -> None:
    broken = messages.RankBroken(generation=scene.state.generation, rank=rank, error="connection closed by peer")
    scene.say(scene.home(rank), broken)


def leaves(scene: Scene, rank: int) -> None:
    scene.exits(rank, 0, step=5, script_ended=True)


@pytest.mark.parametrize("first", ["exit", "collective"])
def test_a_rank_that_exits_with_0_in_a_step_is_the_root_cause_of_what_follows(first: str) -> None:
    """Named as soon as others miss it, whichever is heard of first; the second time it is the script that is at fault."""
    scene = Scene(broken_collective_grace_s=60.0)
    scene.start(commit_step=4)
    leaves(scene, 2) if first == "exit" else breaks(scene, 0)
    assert not scene.notes("failure")
    breaks(scene, 0) if first == "exit" else leaves(scene, 2)
    (failure,) = scene.notes("failure")
    assert (failure.fields["cause"], failure.fields["ranks"]) == (CAUSE, (2,))
    scene.recover(step=5, survivors=[0, 1, 3], joiners=[2])
    scene.bring_up(5)
    leaves(scene, 2)
    breaks(scene, 1)
    assert (scene.end().exit_code, scene.end().root_cause) == (1, CAUSE)


def test_its_exit_takes_longer_than_a_broken_collective_is_waited_for() -> None:
    """It has said that it exits, before its connections went down with it."""
    scene = Scene(broken_collective_grace_s=0.5)
    scene.start(commit_step=4)
    scene.say(1, messages.RankRaised(generation=1, rank=2, error="SystemExit"))
    breaks(scene, 0)
    scene.wait(3.0)
    assert not scene.notes("failure")
    leaves(scene, 2)
    assert [note.fields["cause"] for note in scene.notes("failure")] == [CAUSE]


def test_an_error_that_is_on_its_way_out_of_another_rank_comes_first() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.say(0, messages.RankRaised(generation=1, rank=0, error="ValueError"))
    breaks(scene, 1)
    leaves(scene, 2)
    assert not scene.notes("failure")
    scene.exits(0, 1, error="ValueError")
    assert [note.fields["ranks"] for note in scene.notes("failure")] == [(0,)]


def test_a_joiner_that_exits_with_0_in_its_rehearsal_does_so_twice_at_most() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.killed(2)
    leaves(scene, 2)
    assert [note.fields["cause"] for note in scene.notes("failure")][1:] == [CAUSE]
    leaves(scene, 2)
    assert (scene.end().exit_code, scene.end().root_cause) == (1, CAUSE)


def test_a_rank_that_leaves_before_its_first_step_is_not_said_to_have_made_it() -> None:
    """The generation is not up before the others have shown that they do without it, or miss it."""
    scene = Scene()
    scene.start(commit_step=4)
    scene.killed(3)
    scene.recover(step=5, survivors=[0, 1, 2], joiners=[3])
    for rank in range(4):
        scene.say(scene.home(rank), messages.RankReformed(generation=2, rank=rank))
        scene.say(scene.home(rank), messages.RankRestored(generation=2, rank=rank, step=5, bytes_restored=0))
    leaves(scene, 2)
    assert not scene.notes("recovered")
    for rank in (0, 1, 3):
        leaves(scene, rank)
    assert scene.end().exit_code == 0


def test_it_is_so_too_where_the_others_hang() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.exits(2, 0, step=5, script_ended=True)
    scene.stall(31.0, sure=True)
    for node in (0, 1):
        calls = messages.GroupCall(group="dp", operation="allreduce", entered=9, completed=8)
        ranks = [messages.RankCalls(rank=rank.rank, pid=rank.pid, step=4, groups=(calls,)) for rank in scene.present(node)]
        scene.say(node, messages.CallReport(generation=1, ranks=tuple(ranks)))
    assert [note.fields["ranks"] for note in scene.notes("failure")] == [(2,)]


def test_it_is_missed_too_by_those_that_have_gone_on_without_it() -> None:
    """They need no collective for that, but what they do from there on is never committed: they would wait at the end."""
    scene = Scene()
    scene.start(commit_step=4)
    scene.heartbeat(step=5)
    leaves(scene, 2)
    scene.heartbeat(step=5)
    assert not scene.notes("failure")
    scene.heartbeat(step=6)
    assert [note.fields["cause"] for note in scene.notes("failure")] == [CAUSE]


def test_it_is_missed_where_all_others_have_made_their_first_step_after_a_recovery() -> None:
    """In that step it has left once more; nobody waits in a call, and the generation would never be up."""
    scene = Scene()
    scene.start(commit_step=4)
    leaves(scene, 2)
    breaks(scene, 0)
    scene.recover(step=5, survivors=[0, 1, 3], joiners=[2])
    for rank in range(4):
        scene.say(scene.home(rank), messages.RankReformed(generation=2, rank=rank))
        scene.say(scene.home(rank), messages.RankRestored(generation=2, rank=rank, step=5, bytes_restored=0))
    for rank in (0, 1):
        scene.say(scene.home(rank), messages.RankResumed(generation=2, rank=rank, step=6, at_ns=0))
    leaves(scene, 2)
    assert scene.state.phase is Phase.RECOVER
    scene.say(scene.home(3), messages.RankResumed(generation=2, rank=3, step=6, at_ns=0))
    assert (scene.end().exit_code, scene.end().root_cause) == (1, CAUSE)


def test_a_rank_that_alone_has_left_its_loop_in_a_body_is_missed_by_those_that_go_on() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.say(1, messages.RankFinished(generation=1, rank=2, step=6))
    leaves(scene, 2)
    scene.heartbeat(step=6)  # in their last step they do without it
    assert not scene.notes("failure")
    breaks(scene, 0)
    assert [note.fields["cause"] for note in scene.notes("failure")] == [CAUSE]


def test_ranks_that_all_exit_after_a_collective_has_failed_have_not_agreed_to_it() -> None:
    """What they got from it is nothing that anybody has communicated. The first to say that it exits is the root cause."""
    scene = Scene()
    scene.start(commit_step=4)
    scene.say(1, messages.RankRaised(generation=1, rank=2, error="SystemExit"))
    scene.wait(0.1)
    breaks(scene, 0)
    for rank in (0, 1, 3):
        scene.say(scene.home(rank), messages.RankRaised(generation=1, rank=rank, error="SystemExit"))
        scene.wait(0.1)
        leaves(scene, rank)
    leaves(scene, 2)
    assert [note.fields["cause"] for note in scene.notes("failure")] == [CAUSE]


def test_ranks_that_all_exit_with_0_have_agreed_to_stop() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    for rank in range(4):
        scene.exits(rank, 0, step=5, script_ended=True)
        scene.wait(5.0)
    assert scene.end().exit_code == 0


def test_rank_that_leaves_its_loop_early_is_done() -> None:
    scene = Scene()
    scene.start(commit_step=9)
    for rank in (0, 1, 2):
        scene.exits(rank, 0)
    assert scene.state.phase is Phase.RUN
    scene.exits(3, 0)
    assert scene.end().exit_code == 0


@pytest.mark.parametrize(("in_step", "missed"), [(5, False), (6, True)])
def test_who_has_left_after_a_step_is_not_waited_for_in_it(in_step: int, missed: bool) -> None:
    """It has done its part of step 5: when the others hang in that one, it is not by its doing."""
    scene = Scene()
    scene.start(commit_step=4)
    scene.heartbeat(step=in_step)
    scene.say(1, messages.RankFinished(generation=1, rank=2, step=6))
    scene.exits(2, 0, step=6, script_ended=True)
    scene.stall(31.0, sure=True)
    for node in (0, 1):
        calls = messages.GroupCall(group="dp", operation="allreduce", entered=9, completed=8)
        reported = [
            messages.RankCalls(rank=rank.rank, pid=rank.pid, step=in_step, groups=(calls,)) for rank in scene.present(node)
        ]
        scene.say(node, messages.CallReport(generation=1, ranks=tuple(reported)))
    (failure,) = scene.notes("failure")
    assert (failure.fields["ranks"] == (2,)) is missed
