"""A rank's part in the protocol: orders, breaks and boundaries in every order in which they can come."""

from dataclasses import replace

import pytest

from deadpool.proto.messages import (
    NO_STEP,
    BeginLoop,
    Quiesce,
    RankBroken,
    RankFailed,
    RankFinished,
    RankPrepared,
    RankRaised,
    RankReopened,
    Reform,
    Release,
)
from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.protocol import Action, Break, Leave, Member, RankPhase, Recover


def quiesce(generation: int) -> Quiesce:
    return Quiesce(generation=generation, reason="node1 lost")


def reform(generation: int, resume_step: int, commit_step: int = NO_STEP, yielded: int = 4) -> Reform:
    return Reform(
        generation=generation,
        resume_step=resume_step,
        commit_step=commit_step,
        yielded=yielded,
        store_host="h",
        store_port=1,
        placements=(),
        sources=(),
    )


def prepared(generation: int, live: tuple[int, int] | None = None, commit_step: int = NO_STEP, yielded: int = 5) -> RankPrepared:
    live_generation, live_step = live or (0, NO_STEP)
    return RankPrepared(
        generation=generation,
        rank=0,
        live_generation=live_generation,
        live_step=live_step,
        commit_step=commit_step,
        yielded=yielded,
    )


@pytest.fixture
def running() -> Member:
    """In step 5 of generation 1."""
    member = Member(rank=0, generation=1, joiner=False)
    member.begun(4)
    rehearse(member)
    step(member, 4)
    return member


def step(member: Member, step: int) -> None:
    """One step is complete, and the loop body is through with it."""
    assert member.boundary(step)
    assert member.had()


def rehearse(member: Member) -> None:
    while not member.rehearsed:
        member.attempted()


def kinds(actions: list[Action]) -> list[type]:
    return [type(action) for action in actions]


def test_a_rank_reports_how_far_its_script_has_had_the_steps_and_goes_on_as_the_plan_says(running: Member) -> None:
    running.quiesce(quiesce(2))
    assert running.quiesced(clean=True) == [prepared(2, (1, 5), yielded=5)]
    plan = reform(2, 4, yielded=4)  # another rank's loop body of step 4 did not get through
    running.reform(plan)
    assert running.restored(plan, StateId(generation=1, step=4))
    running.quiesce(quiesce(3))
    assert running.quiesced(clean=True) == [prepared(3, (1, 4), yielded=4)]


def test_a_step_is_over_with_its_loop_body_not_before(running: Member) -> None:
    assert running.optimizer_began()
    assert running.boundary(5)
    assert running.live == StateId(generation=1, step=5)
    assert running.yields
    running.quiesce(quiesce(2))  # in the body, which does not communicate
    assert running.had()
    assert running.quiesced(clean=True) == [prepared(2, (1, 6), yielded=6)]


def test_a_loop_body_that_needs_a_broken_generation_is_said_to_be_outside_and_its_step_is_not_had(running: Member) -> None:
    assert running.boundary(5)
    assert running.outside() is None
    running.collective_failed(1, "connection closed")
    assert running.outside() == []  # the order has not come yet
    said = replace(prepared(2), outside=True)
    assert running.quiesce(quiesce(2)) == [said]
    assert running.outside() == []  # another thread of the process
    assert running.quiesce(quiesce(3)) == [replace(said, generation=3)]
    assert running.reform(reform(3, 5)) == []


def test_a_muted_call_in_the_step_may_return(running: Member) -> None:
    running.quiesce(quiesce(2))
    assert running.outside() is None


def test_a_step_that_every_script_has_had_is_not_yielded_again(running: Member) -> None:
    running.quiesce(quiesce(2))
    running.quiesced(clean=True)
    plan = reform(2, 4, yielded=5)
    running.reform(plan)
    assert running.restored(plan, StateId(generation=1, step=4))
    assert running.boundary(4)
    assert not running.yields
    assert running.had()
    assert running.boundary(5)
    assert running.yields


def test_leaving_the_loop_in_a_body_keeps_the_state_safe_and_the_body_open(running: Member) -> None:
    assert running.boundary(5)
    assert running.left() == [RankFinished(generation=1, rank=0, step=6)]
    assert (running.live, running.yielded) == (StateId(generation=1, step=6), 5)
    assert kinds(running.quiesce(quiesce(2))) == [Break]
    assert running.left() == []
    assert running.outside() == [replace(prepared(2), outside=True)]


def test_a_script_that_leaves_in_the_middle_of_a_step_is_done_with_the_one_before_and_sees_nothing_muted(running: Member) -> None:
    running.optimizer_began()
    assert running.left_in_step(5) == [RankFinished(generation=1, rank=0, step=5)]
    assert running.outside() is None  # its calls are live
    running.quiesce(quiesce(2))
    assert running.left_in_step(5) == []
    assert running.outside() == [replace(prepared(2), outside=True)]


def test_an_exception_that_has_left_the_loop_in_the_middle_of_a_step_is_said(running: Member) -> None:
    running.left_in_step(5)
    assert running.exits("ValueError") == [RankRaised(generation=1, rank=0, error="ValueError")]
    assert running.exits("ValueError") == []


def test_a_rehearsal_tells_nothing_of_what_the_script_has_had() -> None:
    joiner = Member(rank=0, generation=1, joiner=True)
    assert not joiner.had()
    rehearse(joiner)
    assert joiner.quiesced(clean=True) == [prepared(1, yielded=NO_STEP)]


def test_an_order_breaks_the_step_and_the_rank_reports_its_clean_state(running: Member) -> None:
    running.commit_known(1, 4)
    assert kinds(running.quiesce(quiesce(2))) == [Break]
    assert not running.boundary(5)
    assert running.quiesced(clean=True) == [prepared(2, (1, 5), commit_step=4)]
    assert running.reform(reform(2, 5)) == [Recover(order=reform(2, 5))]
    assert running.restored(reform(2, 5), StateId(generation=1, step=5))
    assert (running.phase, running.running) == (RankPhase.RUN, 2)


def test_a_break_of_its_own_is_reported_once_and_waits_for_the_order(running: Member) -> None:
    assert kinds(running.collective_failed(1, "connection closed")) == [RankBroken]
    assert running.collective_failed(1, "connection closed") == []
    assert running.quiesced(clean=True) == []
    assert running.quiesce(quiesce(2)) == [prepared(2, (1, 5))]


def test_a_state_caught_in_optimizer_step_is_not_offered(running: Member) -> None:
    assert running.optimizer_began()
    running.quiesce(quiesce(2))
    assert running.quiesced(clean=True) == [prepared(2)]


def test_a_state_that_something_else_changed_is_not_offered(running: Member) -> None:
    running.quiesce(quiesce(2))
    assert not running.optimizer_began()
    assert running.quiesced(clean=False) == [prepared(2)]


def test_late_orders_change_nothing(running: Member) -> None:
    assert running.quiesce(quiesce(1)) == []
    assert running.reform(reform(1, 3)) == []
    assert running.collective_failed(0, "late") == []
    running.commit_known(0, 99)
    assert (running.phase, running.commit_step) == (RankPhase.RUN, NO_STEP)
    assert running.boundary(5)


def test_a_second_failure_while_waiting_is_answered_at_once(running: Member) -> None:
    running.quiesce(quiesce(2))
    running.quiesced(clean=True)
    assert running.quiesce(quiesce(3)) == [prepared(3, (1, 5))]
    assert running.reform(reform(2, 5)) == []


def test_a_second_failure_during_the_restore(running: Member) -> None:
    running.quiesce(quiesce(2))
    running.quiesced(clean=True)
    running.reform(reform(2, 4))
    running.restoring(in_place=False)
    assert kinds(running.quiesce(quiesce(3))) == [Break]
    assert not running.restored(reform(2, 4), StateId(generation=1, step=4))
    assert running.recovery_failed(reform(2, 4), "restore", "cut short") == [prepared(3)]


def test_a_failed_reform_is_reported_and_the_live_state_kept(running: Member) -> None:
    running.quiesce(quiesce(2))
    running.quiesced(clean=True)
    running.reform(reform(2, 5))
    assert kinds(running.recovery_failed(reform(2, 5), "reform", "refused")) == [RankFailed]
    assert running.quiesce(quiesce(3)) == [prepared(3, (1, 5))]


def test_a_joiner_reports_when_it_has_rehearsed_for_the_newest_generation() -> None:
    joiner = Member(rank=0, generation=2, joiner=True)
    assert joiner.optimizer_began()
    assert joiner.quiesce(quiesce(3)) == []
    rehearse(joiner)
    assert joiner.quiesced(clean=False) == [prepared(3, yielded=NO_STEP)]
    joiner.reform(reform(3, 7, commit_step=6))
    assert joiner.restored(reform(3, 7, commit_step=6), StateId(generation=1, step=7))
    assert (joiner.live, joiner.commit_step) == (StateId(generation=1, step=7), 6)


def test_a_restored_state_keeps_its_identity_and_the_commit_never_lies_behind_it(running: Member) -> None:
    running.commit_known(1, 5)
    running.quiesce(quiesce(2))
    running.quiesced(clean=True)
    running.reform(reform(2, 4, commit_step=5))
    assert running.restored(reform(2, 4, commit_step=5), StateId(generation=1, step=4))
    assert running.commit_step == 4
    step(running, 4)
    assert running.live == StateId(generation=2, step=5)


def test_a_finished_rank_can_still_take_part_until_it_is_released(running: Member) -> None:
    assert kinds(running.finished(5)) == [RankFinished]
    assert kinds(running.quiesce(quiesce(2))) == [Break]
    assert running.quiesced(clean=True) == [prepared(2, (1, 5))]
    running.reform(reform(2, 5))
    running.restored(reform(2, 5), StateId(generation=1, step=5))
    assert kinds(running.finished(5)) == [RankFinished]
    running.release(Release(generation=1, step=5))
    assert running.phase.value == "finished"
    running.release(Release(generation=2, step=5))
    assert running.phase.value == "released"


def test_a_released_rank_leaves_rather_than_going_on_with_muted_groups(running: Member) -> None:
    running.finished(5)
    running.release(Release(generation=1, step=5))
    assert running.collective_failed(1, "reset") == [Leave()]
    assert running.quiesce(quiesce(2)) == [Leave()]


@pytest.fixture
def reopened(running: Member) -> Member:
    """Released from a loop that has ended with S_5, at the beginning of another one."""
    running.stands_in(start=0, until=5, first=True)
    running.finished(5)
    running.release(Release(generation=1, step=5))
    assert running.reopened() == [RankReopened(generation=1, rank=0, step=5)]
    return running


def test_a_later_loop_begins_with_a_state_that_nobody_can_go_back_to(reopened: Member) -> None:
    reopened.begin_loop(BeginLoop(generation=1, step=3))  # of another loop, late
    assert reopened.phase.value == "reopened"
    reopened.begin_loop(BeginLoop(generation=1, step=5))
    reopened.stands_in(start=5, until=9, first=False)
    assert reopened.phase.value == "run"
    reopened.quiesce(quiesce(2))
    assert reopened.quiesced(clean=True) == [replace(prepared(2), earliest=6, latest=9)]
    (refused,) = reopened.reform(reform(2, 5))
    assert isinstance(refused, RankFailed)
    assert kinds(reopened.reform(reform(2, 6))) == [Recover]


def test_a_state_of_a_later_loop_is_gone_back_to_in_place(reopened: Member) -> None:
    reopened.begin_loop(BeginLoop(generation=1, step=5))
    reopened.stands_in(start=5, until=9, first=False)
    step(reopened, 5)
    reopened.quiesce(quiesce(2))
    assert reopened.quiesced(clean=True) == [replace(prepared(2, (1, 6), yielded=6), earliest=6, latest=9)]


def test_an_old_release_does_not_count_for_a_later_loop(reopened: Member) -> None:
    reopened.begin_loop(BeginLoop(generation=1, step=5))
    step(reopened, 5)
    reopened.finished(6)
    reopened.release(Release(generation=1, step=5))
    assert reopened.phase is RankPhase.FINISHED


def test_who_waits_for_the_next_loop_when_the_generation_breaks_is_replaced(reopened: Member) -> None:
    assert kinds(reopened.collective_failed(1, "reset")) == [RankBroken]
    said = replace(prepared(2), outside=True, latest=5)
    assert reopened.quiesce(quiesce(2)) == [said]
    reopened.begin_loop(BeginLoop(generation=2, step=5))
    assert reopened.phase is RankPhase.OUTSIDE


def test_a_break_before_the_loop_is_entered() -> None:
    member = Member(rank=0, generation=1, joiner=False)
    member.quiesce(quiesce(2))
    member.begun(0)
    assert member.phase is RankPhase.BROKEN
    assert not member.rehearsed  # an attempt, muted, comes first
    rehearse(member)
    assert member.quiesced(clean=True) == [prepared(2, (1, 0), yielded=0)]


def test_a_process_that_exits_in_its_loop_says_so_once(running: Member) -> None:
    assert running.exits("ValueError: no") == [RankRaised(generation=1, rank=0, error="ValueError: no")]
    assert running.exits("SystemExit") == []


def test_one_that_is_done_with_all_others_has_nothing_to_say(running: Member) -> None:
    running.finished(5)
    running.release(Release(generation=1, step=5))
    assert running.exits("SystemExit") == []
