"""A job whose script has no hooks: restarted as a whole, with fewer nodes or more where a range of them was asked for."""

import pytest
from supervising import Scene

from deadpool.proto import messages
from deadpool.proto.messages import NO_STEP
from deadpool.supervisor.model.phase import Phase


def test_unhooked_ranks_restart_together_up_to_max_restarts() -> None:
    scene = Scene(max_restarts=1)
    scene.start(hooked=False)
    scene.forget()
    scene.exits(1, 3, log_tail="boom")
    assert scene.state.generation == 2
    scene.open_store()
    starts = scene.took(messages.StartRanks)
    assert [(node, order.restart_count) for node, order in starts] == [(0, 1), (1, 1)]
    scene.heartbeat(step=NO_STEP)
    scene.exits(1, 3, log_tail="boom")
    assert scene.end().exit_code == 1
    assert scene.end().root_cause == "rank 1 on node0 failed: exit code 3\nboom"
    (ended,) = scene.notes("job_ended")
    assert ended.fields == {"exit_code": 1, "reason": "rank 1 on node0 failed: exit code 3", "error": "boom"}


@pytest.mark.parametrize(("waited_s", "done", "counted"), [(119, [], 0), (121, [], 1), (1, [0], 1)])
def test_a_node_lost_before_its_script_can_have_joined_is_replaced_and_nothing_is_counted(
    waited_s: float, done: list[int], counted: int
) -> None:
    scene = Scene(max_restarts=1)
    scene.start(hooked=False)
    scene.wait(waited_s)
    for rank in done:  # it has come to its end, and has joined nothing on its way
        scene.exits(rank, 0)
    scene.forget()
    scene.lose(1)
    scene.open_store()
    assert [(node, order.restart_count) for node, order in scene.took(messages.StartRanks)] == [(0, counted), (2, counted)]


def test_what_is_not_counted_as_a_restart_has_an_end_too() -> None:
    scene = Scene(max_restarts=0, max_recoveries_without_progress=2)
    scene.start(hooked=False)
    for lost in (1, 2):
        scene.lose(lost)
        scene.hello(lost)
        scene.open_store()
        scene.heartbeat(step=NO_STEP)
    scene.lose(1)
    assert scene.end().root_cause == (
        "node1 lost: its stream was closed; 2 recoveries in a row have brought no new committed step"
    )


@pytest.mark.parametrize("comes_back", [True, False])
def test_without_a_spare_a_node_lost_before_any_join_counts_unless_it_is_there_again(comes_back: bool) -> None:
    scene = Scene(max_restarts=0, spares=0)
    scene.start(hooked=False)
    scene.forget()
    if comes_back:
        scene.hello(1)
        scene.open_store()
        assert [node for node, _ in scene.took(messages.StartRanks)] == [0, 1]
    else:
        scene.lose(1)
        assert scene.end().root_cause == "node1 lost: its stream was closed"


def test_unhooked_job_uses_its_spare() -> None:
    scene = Scene(max_restarts=1)
    scene.start(hooked=False)
    scene.forget()
    scene.lose(1)
    scene.open_store()
    assert [node for node, _ in scene.took(messages.StartRanks)] == [0, 2]
    scene.heartbeat(step=NO_STEP)
    assert scene.notes("restarted")  # what is not known here is not said: that they have made a step
    assert not scene.notes("recovered")
    (record,) = scene.state.recovery.records
    assert (record.resume_step, record.steps_reexecuted, record.phases_s.first_step) == (NO_STEP, 0, 0.0)


def seats(scene: Scene) -> dict[int, tuple[int, int]]:
    """Returns the ranks as they were started: rank -> (node, how many ranks there are)."""
    return {place.rank: (node, order.world_size) for node, order in scene.took(messages.StartRanks) for place in order.placements}


def test_with_a_range_of_nodes_an_unhooked_job_goes_on_with_fewer_and_grows_again() -> None:
    scene = Scene(max_restarts=1, min_nnodes=1, spares=0)
    scene.start(hooked=False)
    scene.forget()
    scene.lose(0)
    scene.open_store()
    assert seats(scene) == {0: (1, 2), 1: (1, 2)}
    assert all(order.master_node_count == 1 for _, order in scene.took(messages.StartRanks))
    scene.heartbeat(step=NO_STEP, nodes=[1])
    assert scene.state.phase is Phase.RUN
    scene.forget()
    scene.hello(0)
    scene.open_store()
    assert seats(scene) == {0: (1, 4), 1: (1, 4), 2: (0, 4), 3: (0, 4)}
    assert {order.restart_count for _, order in scene.took(messages.StartRanks)} == {1}  # growing counts as no restart
    for rank in range(4):
        scene.exits(rank, 0)
    assert scene.end().exit_code == 0


def test_a_job_with_a_range_of_nodes_takes_a_spare_first_and_waits_below_the_least() -> None:
    scene = Scene(max_restarts=9, min_nnodes=1)
    scene.start(hooked=False)
    scene.forget()
    scene.lose(1)
    scene.open_store()
    assert seats(scene) == {0: (0, 4), 1: (0, 4), 2: (2, 4), 3: (2, 4)}
    scene.forget()
    scene.lose(0)
    scene.lose(2)
    assert scene.state.roster.vacancies() == [0]
    scene.hello(1)
    scene.open_store()
    assert seats(scene)[0] == (1, 2)


def test_a_hooked_job_keeps_its_size() -> None:
    scene = Scene(min_nnodes=1, spares=0)
    scene.start()
    scene.lose(1)
    assert scene.state.roster.vacancies() == [1]


def test_unhooked_job_is_done_when_all_ranks_exit_with_0() -> None:
    scene = Scene()
    scene.start(hooked=False)
    for rank in range(4):
        scene.exits(rank, 0)
    assert scene.end().exit_code == 0
    assert scene.end().root_cause == ""
