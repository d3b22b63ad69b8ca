"""The agent's decisions: the fence, who plays which rank, what follows an exit, when stand-ins are made."""

from dataclasses import replace

import pytest
from driven_node import CONFIG, Node, placement, reports, to_ranks

from deadpool.agent.events import (
    DropSnapshots,
    EndNode,
    KillProcess,
    LaunchRefused,
    NameProcess,
    PrepareStore,
    ProcessForked,
    ProcessRegistered,
    RankSpoke,
    Report,
    ReportVault,
    ServeStore,
    StartProcess,
    StoreServed,
    UseEdges,
)
from deadpool.agent.gathering import WAIT_S
from deadpool.agent.standins import REFILL_DELAY_S, STANDIN_FAILURES_MAX
from deadpool.proto.config import Transport, to_json
from deadpool.proto.messages import (
    Endpoint,
    KillRanks,
    LaunchFailed,
    OpenStore,
    Placement,
    Quiesce,
    RankExited,
    RankFailed,
    RankPrepared,
    RankReformed,
    RankRestored,
    RankResumed,
    RanksSaid,
    Reform,
    Release,
    Role,
    Source,
    SourceKind,
    StartRanks,
    Stop,
    StoreOpened,
    WarmUp,
    Welcome,
)


def test_ranks_start_with_their_environment_and_get_their_role_when_they_join() -> None:
    node = Node()
    commands = node.start(0, 1)
    assert commands[0] == DropSnapshots()
    assert [(each.rank, each.environment["RANK"]) for each in commands if isinstance(each, StartProcess)] == [(0, "0"), (1, "1")]
    node.event(ProcessForked(process=1, pid=7))
    ((process, role),) = to_ranks(node.event(ProcessRegistered(process=1, pid=7)))
    assert isinstance(role, Role)
    assert (process, role.rank, role.muted, role.store_port, role.environment["MASTER_PORT"]) == (1, 1, False, 1, "1")


def test_orders_of_an_older_generation_change_nothing() -> None:
    node = Node()
    node.run(node.start(0, generation=3))
    for order in (
        OpenStore(generation=2),
        Quiesce(generation=2, reason=""),
        KillRanks(generation=2, ranks=(0,), reason=""),
        Release(generation=2, step=9),
        Reform(generation=2, resume_step=1, store_host="", store_port=0, placements=(placement(0),), sources=()),
    ):
        assert node.order(order) == []
    assert node.start(0, generation=2) == node.assign(1, generation=2) == []
    assert node.core.generation == 3


def test_an_exit_is_reported_with_what_the_process_was_ordered() -> None:
    node = Node()
    zero, one = node.run(node.start(0, 1))
    node.order(Quiesce(generation=2, reason=""))
    (exited,) = reports(node.exit(one))
    assert isinstance(exited, RankExited)
    assert (exited.generation, exited.rank, exited.step, exited.commit_step) == (2, 1, 5, 4)
    (again,) = reports(node.order(KillRanks(generation=3, ranks=(0, 1), reason="")))
    assert isinstance(again, RankExited)
    assert (again.rank, again.generation) == (1, 3)  # it was dead already
    assert node.core.ranks() == {}
    assert [each.generation for each in reports(node.exit(zero)) if isinstance(each, RankExited)] == [3]


def test_a_start_from_scratch_waits_for_the_old_processes_and_keeps_quiet_about_them() -> None:
    node = Node()
    zero, one = node.run(node.start(0, 1))
    assert node.start(0, 1, generation=2) == [KillProcess(process=zero), KillProcess(process=one)]
    assert node.exit(zero) == []
    commands = node.exit(one)
    assert reports(commands) == []
    assert [each.generation for each in commands if isinstance(each, StartProcess)] == [2, 2]


def test_ranks_that_are_to_be_killed_while_their_start_waits_are_not_started() -> None:
    """Whoever orders that waits for their ends, which are not those of the processes of before."""
    node = Node()
    zero, one = node.run(node.start(0, 1))
    node.exit(one)
    node.start(0, 1, generation=2)
    (exited,) = reports(node.order(KillRanks(generation=3, ranks=(1,), reason="")))
    assert isinstance(exited, RankExited)
    assert (exited.generation, exited.rank, exited.pid, exited.signal) == (3, 1, 0, 9)
    assert reports(node.order(KillRanks(generation=4, ranks=(1,), reason=""))) == [replace(exited, generation=4)]
    commands = node.exit(zero)
    assert [each.rank for each in commands if isinstance(each, StartProcess)] == [0]
    node = Node()
    zero, one = node.run(node.start(0, 1))
    node.start(0, 1, generation=2)
    ends = reports(node.order(KillRanks(generation=3, ranks=(0, 1), reason="")))
    assert [each.rank for each in ends if isinstance(each, RankExited)] == [0, 1]
    assert node.exit(zero) == node.exit(one) == []


def test_a_stand_in_that_waits_gets_the_rank_immediately() -> None:
    node = Node()
    node.run(node.start(0, 1))
    (standin,) = node.run(node.order(WarmUp(standins=1)))
    assert node.core.standins_ready() == 1
    node.exit(1)
    node.order(Quiesce(generation=2, reason=""))
    commands = node.assign(1, generation=2)
    assert commands[0] == NameProcess(process=standin, rank=1, generation=2)
    ((process, role),) = to_ranks(commands)
    assert isinstance(role, Role)
    assert (process, role.muted, role.hint_step, role.generation) == (standin, True, 9, 2)
    assert (role.store_port, role.environment["MASTER_ADDR"], role.environment["MASTER_PORT"]) == (0, "h", "1")
    assert node.core.standins_ready() == 0


def test_without_a_stand_in_a_process_is_forked_and_starts_in_the_newest_generation() -> None:
    node = Node()
    node.run(node.start(0))
    node.order(Quiesce(generation=2, reason=""))
    commands = node.assign(1, generation=2)
    (process,) = node.run(commands, register=False)
    assert commands[0] == StartProcess(process=process, rank=None, generation=2, environment={"DEADPOOL_STANDIN": "1"})
    node.order(Quiesce(generation=3, reason="a second failure"))
    assert node.assign(1, generation=3) == []  # it lives: no second process for the rank
    ((_, role),) = to_ranks(node.event(ProcessRegistered(process=process, pid=1)))
    assert isinstance(role, Role)
    assert role.generation == 3


def test_a_joiner_that_a_start_from_scratch_overtakes_does_not_speak_for_it() -> None:
    """Its end is ordered with StartRanks, a while after the store: until then it is taken for nobody."""
    node = Node()
    node.run(node.start(0))
    node.order(Quiesce(generation=2, reason=""))
    (process,) = node.run(node.assign(1, generation=2), register=False)
    node.order(OpenStore(generation=3))
    ((_, role),) = to_ranks(node.event(ProcessRegistered(process=process, pid=1)))
    assert isinstance(role, Role)
    assert role.generation == 2
    assert node.core.playing() == {}


def test_one_process_for_each_rank_even_when_stand_ins_are_still_starting() -> None:
    node = Node()
    starting = node.run(node.order(WarmUp(standins=2)), register=False)
    commands = node.assign(0, 1, generation=1)
    assert [command.process for command in commands if isinstance(command, NameProcess)] == starting
    assert not any(isinstance(command, StartProcess) for command in commands)


def test_a_rank_that_joins_late_hears_of_the_quiesce_that_it_missed() -> None:
    node = Node()
    (process,) = node.run(node.start(0), register=False)
    quiesce = Quiesce(generation=2, reason="")
    assert node.order(quiesce) == [ReportVault(generation=2)]
    orders = [order for _, order in to_ranks(node.event(ProcessRegistered(process=process, pid=1)))]
    assert isinstance(orders[0], Role)
    assert orders[0].generation == 1
    assert orders[1:] == [quiesce]


def test_new_stand_ins_wait_until_the_recovery_is_over() -> None:
    node = Node()
    node.run(node.start(0, 1))
    (standin,) = node.run(node.order(WarmUp(standins=1)))
    node.exit(1)
    node.order(Quiesce(generation=2, reason=""))
    node.assign(1, generation=2)
    assert node.core.next_deadline_s() == node.now_s + REFILL_DELAY_S
    late = RankResumed(generation=1, rank=1, step=5, at_ns=0)
    for message, process in ((RankResumed(generation=2, rank=0, step=5, at_ns=0), 0), (late, standin)):
        assert not any(isinstance(each, StartProcess) for each in node.event(RankSpoke(process=process, message=message)))
    commands = node.event(RankSpoke(process=standin, message=RankResumed(generation=2, rank=1, step=5, at_ns=0)))
    assert [type(command) for command in commands] == [Report, StartProcess]
    assert commands[0] == Report(message=RankResumed(generation=2, rank=1, step=5, at_ns=0)), "rank 0 had said it"
    assert node.core.next_deadline_s() is None


def test_a_recovery_that_takes_long_gets_its_stand_in_by_the_clock() -> None:
    node = Node()
    node.order(WarmUp(standins=1))
    node.assign(0, generation=1)
    assert node.core.tick(now_s=node.now_s + REFILL_DELAY_S - 0.1) == []
    assert [type(each) for each in node.core.tick(now_s=node.now_s + REFILL_DELAY_S)] == [StartProcess]


def test_stand_ins_that_never_reach_join_are_given_up() -> None:
    node = Node()
    commands, made = node.order(WarmUp(standins=1)), 0
    while started := node.run(commands, register=False):
        made += 1
        commands = node.exit(started[0], exit_code=1)
    assert made == STANDIN_FAILURES_MAX
    assert node.run(node.assign(0, generation=1)) != []  # a rank that needs a process gets one all the same


def test_prepared_ranks_are_followed_by_a_fresh_report_and_reform_reaches_each_with_its_own_part() -> None:
    node = Node()
    zero, one = node.run(node.start(0, 1))
    node.order(Quiesce(generation=2, reason=""))
    prepared = tuple(RankPrepared(generation=2, rank=rank, live_generation=1, live_step=5, commit_step=4) for rank in range(2))
    assert node.event(RankSpoke(process=zero, message=prepared[0])) == [], "its other rank is awaited"
    said = [Report(message=RanksSaid(prepared=prepared)), ReportVault(generation=2)]
    assert node.event(RankSpoke(process=one, message=prepared[1])) == said
    sources = tuple(Source(rank=rank, kind=SourceKind.LIVE, slot_generation=1) for rank in (0, 1))
    reform = Reform(
        generation=2, resume_step=5, store_host="h", store_port=2, placements=(placement(0), placement(1)), sources=sources
    )
    orders = dict(to_ranks(node.order(reform)))
    assert orders.keys() == {zero, one}
    for process, rank in ((zero, 0), (one, 1)):
        order = orders[process]
        assert isinstance(order, Reform)
        assert (order.placements, order.sources, order.store_port) == ((placement(rank),), (sources[rank],), 2)


@pytest.mark.parametrize("generation", [1, 2])  # in 1: the node was drained, and lost, and goes on in the job as a new one
def test_a_node_that_the_job_has_left_behind_ends_its_ranks(generation: int) -> None:
    node = Node()
    zero, one = node.run(node.start(0, 1))
    welcome = Welcome(config_json=to_json(CONFIG), generation=1, resumed=True)
    assert node.order(welcome) == []  # the supervisor was away, nothing has changed
    left_behind = node.order(Welcome(config_json=to_json(CONFIG), generation=generation))
    assert left_behind == [KillProcess(process=zero), KillProcess(process=one)]
    assert node.exit(zero) == node.exit(one) == []
    assert node.core.generation == generation


def test_where_replicas_travel_by_mpi_each_placing_says_to_whom() -> None:
    config = replace(CONFIG, h2h=Transport.MPI)
    node = Node(config)

    def at(name: str) -> Placement:
        return replace(placement(0), holders=(Endpoint(node_id=name, host="h", port=1),))

    order = StartRanks(
        generation=1, world_size=2, placements=(at("b"),), store_host="h", store_port=1, master_node_count=1, restart_count=0
    )
    (process,) = node.run(commands := node.order(order))
    holders = (Endpoint(node_id="b", host="h", port=1),)
    assert [each for each in commands if isinstance(each, UseEdges)] == [UseEdges(generation=1, holders=holders)]
    reform = Reform(generation=2, resume_step=5, store_host="h", store_port=2, placements=(at("c"),), sources=())
    holders = (Endpoint(node_id="c", host="h", port=1),)
    assert node.order(reform)[0] == UseEdges(generation=2, holders=holders)
    left_behind = node.order(Welcome(config_json=to_json(config), generation=3))
    assert left_behind == [KillProcess(process=process), UseEdges(generation=3, holders=())]


def test_a_node_that_cannot_run_the_job_says_so_each_time() -> None:
    node = Node()
    node.event(LaunchRefused(reason="no torch"))
    for commands in (node.order(OpenStore(generation=1)), node.start(0, generation=2), node.assign(0, generation=3)):
        assert [each.reason for each in reports(commands) if isinstance(each, LaunchFailed)] == ["no torch"]
    assert node.order(WarmUp(standins=2)) == []


def test_stores_are_served_and_their_failure_is_reported() -> None:
    node = Node()
    assert node.order(OpenStore(generation=1)) == [ServeStore(generation=1)]
    opened = node.event(StoreServed(generation=1, port=5, error=""))
    assert reports(opened) == [StoreOpened(generation=1, host="h", port=5)]
    assert reports(node.event(StoreServed(generation=1, port=0, error="no"))) == [LaunchFailed(generation=1, reason="no")]


def test_the_end_is_obeyed_once_and_nothing_after_it() -> None:
    node = Node()
    node.run(node.start(0))
    node.run(node.order(WarmUp(standins=1)))
    stop = Stop(reason="done", grace_s=1.0)
    assert node.order(stop) == [EndNode(grace_s=1.0, signal_number=15)]
    assert node.order(stop) == node.start(0, generation=2) == node.exit(1) == []


def test_the_process_that_serves_stores_is_there_before_a_store_is_asked_for() -> None:
    node = Node()
    assert PrepareStore() in node.order(WarmUp(standins=1))
    assert PrepareStore() not in node.order(WarmUp(standins=0))


def test_what_a_rank_has_said_waits_for_the_others_for_milliseconds_and_for_nothing_else() -> None:
    node = Node()
    zero, one = node.run(node.start(0, 1))
    node.order(Quiesce(generation=2, reason=""))
    prepared = RankPrepared(generation=2, rank=0, live_generation=1, live_step=5, commit_step=4)
    assert node.event(RankSpoke(process=zero, message=prepared)) == []
    deadline_s = node.core.next_deadline_s()
    assert deadline_s == node.now_s + WAIT_S
    assert node.core.tick(now_s=deadline_s) == [Report(message=prepared), ReportVault(generation=2)]
    reformed = tuple(RankReformed(generation=2, rank=rank) for rank in range(2))
    restored = RankRestored(generation=2, rank=0, step=5, bytes_restored=0)
    assert node.event(RankSpoke(process=zero, message=reformed[0])) == []
    assert node.event(RankSpoke(process=zero, message=restored)) == []
    said = Report(message=RanksSaid(reformed=reformed, restored=(restored,)))
    assert node.event(RankSpoke(process=one, message=reformed[1])) == [said]
    again = RankRestored(generation=2, rank=0, step=4, bytes_restored=0)
    node.event(RankSpoke(process=zero, message=again))
    failed = RankFailed(generation=2, rank=1, phase="restore", error="")
    commands = node.event(RankSpoke(process=one, message=failed))
    assert commands == [Report(message=again), Report(message=failed)], "a failure goes on immediately, in its order"


def test_one_that_died_is_not_waited_for() -> None:
    node = Node()
    zero, one = node.run(node.start(0, 1))
    node.order(Quiesce(generation=2, reason=""))
    prepared = RankPrepared(generation=2, rank=0, live_generation=1, live_step=5, commit_step=4)
    assert node.event(RankSpoke(process=zero, message=prepared)) == []
    said = [each for each in node.exit(one, exit_code=137) if isinstance(each, Report | ReportVault)]
    assert said[:2] == [Report(message=prepared), ReportVault(generation=2)]
    resumed = RankResumed(generation=2, rank=0, step=5, at_ns=0)
    assert Report(message=resumed) in node.event(RankSpoke(process=zero, message=resumed))
