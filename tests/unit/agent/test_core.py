"""The agent's decisions: the fence, who plays which rank, what follows an exit, when stand-ins are made, what strikes when."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from deadpool.agent.core import NodeCore
from deadpool.agent.events import (
    Command,
    Configure,
    DropSnapshots,
    EndNode,
    Event,
    HeadsRead,
    InjectHere,
    KillNode,
    KillProcess,
    LaunchRefused,
    NameProcess,
    OrderReceived,
    PrepareStore,
    ProcessExited,
    ProcessForked,
    ProcessRegistered,
    RankSpoke,
    Report,
    ReportVault,
    ServeStore,
    StartProcess,
    StoreServed,
    Tell,
    UseEdges,
)
from deadpool.agent.standins import REFILL_DELAY_S, STANDIN_FAILURES_MAX
from deadpool.proto import messages
from deadpool.proto.call_record import Head
from deadpool.proto.config import JobConfig, Transport, to_json
from deadpool.proto.messages import (
    NO_STEP,
    AgentMessage,
    Assign,
    Endpoint,
    Inject,
    InjectFailure,
    InjectionAck,
    InjectionDue,
    KillRanks,
    LaunchFailed,
    OpenStore,
    Order,
    Placement,
    Quiesce,
    RankExited,
    RankOrder,
    RankPrepared,
    RankResumed,
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

CONFIG = JobConfig(job_id="j", nnodes=1, nproc_per_node=2, command=("s.py",), python="python", log_dir="logs")


def placement(rank: int) -> Placement:
    return Placement(rank=rank, local_rank=rank % 2, node_id="node0", node_rank=rank // 2)


class Node:
    """A core whose processes do what the test says."""

    def __init__(self, config: JobConfig = CONFIG) -> None:
        self.core = NodeCore(node_id="node0", hint=1, host="h")
        self.now_s = 100.0
        assert self.order(Welcome(config_json=to_json(config), generation=0)) == [Configure(config=config)]

    def event(self, event: Event) -> list[Command]:
        return self.core.handle(event, now_s=self.now_s)

    def order(self, order: Order) -> list[Command]:
        return self.event(OrderReceived(order=order))

    def start(self, *ranks: int, generation: int = 1) -> list[Command]:
        return self.order(
            StartRanks(
                generation=generation, world_size=2, placements=tuple(map(placement, ranks)), store_host="h", store_port=1,
                master_node_count=1, restart_count=0,
            )
        )  # fmt: skip

    def assign(self, *ranks: int, generation: int) -> list[Command]:
        return self.order(
            Assign(
                generation=generation, world_size=2, placements=tuple(map(placement, ranks)), hint_step=9, master_node_count=1,
                restart_count=0, store_host="h", store_port=1,
            )
        )  # fmt: skip

    def get_hot(self, *ranks: int, generation: int = 1) -> list[Command]:
        return self.order(
            Assign(
                generation=generation, world_size=2, placements=tuple(map(placement, ranks)), hint_step=9, master_node_count=1,
                restart_count=0, hot=True,
            )
        )  # fmt: skip

    def run(self, commands: Iterable[Command], *, register: bool = True) -> list[int]:
        """Forks and registers what the commands start; returns the processes."""
        started = [command.process for command in commands if isinstance(command, StartProcess)]
        for process in started:
            self.event(ProcessForked(process=process, pid=1000 + process))
            if register:
                self.event(ProcessRegistered(process=process, pid=1000 + process))
        return started

    def exit(self, process: int, exit_code: int = 137) -> list[Command]:
        return self.event(
            ProcessExited(process=process, exit_code=exit_code, signal=0, error="", log_tail="", step=5, commit_step=4)
        )


def told(commands: list[Command]) -> list[tuple[int, RankOrder]]:
    return [(command.process, command.order) for command in commands if isinstance(command, Tell)]


def reports(commands: list[Command]) -> list[AgentMessage]:
    return [command.message for command in commands if isinstance(command, Report)]


def test_ranks_start_with_their_environment_and_get_their_role_when_they_join() -> None:
    node = Node()
    commands = node.start(0, 1)
    assert commands[0] == DropSnapshots()
    assert [(each.rank, each.environment["RANK"]) for each in commands if isinstance(each, StartProcess)] == [(0, "0"), (1, "1")]
    node.event(ProcessForked(process=1, pid=7))
    ((process, role),) = told(node.event(ProcessRegistered(process=1, pid=7)))
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


def test_an_exit_is_reported_with_what_the_process_was_told() -> None:
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


def test_a_start_afresh_waits_for_the_old_processes_and_keeps_quiet_about_them() -> None:
    node = Node()
    zero, one = node.run(node.start(0, 1))
    assert node.start(0, 1, generation=2) == [KillProcess(process=zero), KillProcess(process=one)]
    assert node.exit(zero) == []
    commands = node.exit(one)
    assert reports(commands) == []
    assert [each.generation for each in commands if isinstance(each, StartProcess)] == [2, 2]


def test_a_stand_in_that_waits_gets_the_rank_at_once() -> None:
    node = Node()
    node.run(node.start(0, 1))
    (standin,) = node.run(node.order(WarmUp(standins=1)))
    assert node.core.standins_ready() == 1
    node.exit(1)
    node.order(Quiesce(generation=2, reason=""))
    commands = node.assign(1, generation=2)
    assert commands[0] == NameProcess(process=standin, rank=1, generation=2)
    ((process, role),) = told(commands)
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
    ((_, role),) = told(node.event(ProcessRegistered(process=process, pid=1)))
    assert isinstance(role, Role)
    assert role.generation == 3


def test_a_joiner_that_a_start_afresh_overtakes_does_not_speak_for_it() -> None:
    """Its end is ordered with StartRanks, a while after the store: until then it is taken for nobody."""
    node = Node()
    node.run(node.start(0))
    node.order(Quiesce(generation=2, reason=""))
    (process,) = node.run(node.assign(1, generation=2), register=False)
    node.order(OpenStore(generation=3))
    ((_, role),) = told(node.event(ProcessRegistered(process=process, pid=1)))
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
    orders = [order for _, order in told(node.event(ProcessRegistered(process=process, pid=1)))]
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
    prepared = RankPrepared(generation=2, rank=0, live_generation=1, live_step=5, commit_step=4)
    assert node.event(RankSpoke(process=zero, message=prepared)) == [Report(message=prepared), ReportVault(generation=2)]
    sources = tuple(Source(rank=rank, kind=SourceKind.LIVE, slot_generation=1) for rank in (0, 1))
    reform = Reform(
        generation=2, resume_step=5, store_host="h", store_port=2, placements=(placement(0), placement(1)), sources=sources
    )
    orders = dict(told(node.order(reform)))
    assert orders.keys() == {zero, one}
    for process, rank in ((zero, 0), (one, 1)):
        order = orders[process]
        assert isinstance(order, Reform)
        assert (order.placements, order.sources, order.store_port) == ((placement(rank),), (sources[rank],), 2)


def test_a_node_that_the_job_has_left_behind_ends_its_ranks() -> None:
    node = Node()
    zero, one = node.run(node.start(0, 1))
    welcome = Welcome(config_json=to_json(CONFIG), generation=1)
    assert node.order(welcome) == []  # the supervisor was away, nothing has changed
    left_behind = node.order(Welcome(config_json=to_json(CONFIG), generation=2))
    assert left_behind == [KillProcess(process=zero), KillProcess(process=one)]
    assert node.exit(zero) == node.exit(one) == []
    assert node.core.generation == 2


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


def test_stores_are_served_and_their_failure_is_told() -> None:
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


@pytest.mark.parametrize(
    ("kind", "target", "step", "head", "due"),
    [
        ("kill-rank", 1, 5, {"step": 4, "step_began_ns": 1000, "commit_step": 4}, False),
        ("kill-rank", 1, 5, {"step": 5, "step_began_ns": 1000, "typical_step_ns": 2002, "commit_step": 5}, False),
        ("kill-rank", 1, 5, {"step": 5, "step_began_ns": 1000, "typical_step_ns": 2000, "commit_step": 5}, True),
        ("kill-rank", 1, 5, {"step": 5, "step_began_ns": 1000, "typical_step_ns": 2000, "commit_step": 4}, False),
        ("kill-rank", 1, 5, {"step": 5, "step_began_ns": 1999, "commit_step": 5}, True),  # no step was timed yet
        ("kill-rank", 1, 5, {"step": 7, "step_began_ns": 1000, "typical_step_ns": 2000, "commit_step": 7}, True),  # it is past
        ("kill-rank", 1, 5, {"step": 16, "step_began_ns": 1999, "typical_step_ns": 2000}, True),  # nothing is committed
        ("kill-rank", 1, 0, {}, False),  # not joined yet
        ("kill-node", 1, 5, {"step": 5, "step_began_ns": 1000, "typical_step_ns": 2000, "commit_step": 5}, True),
        ("kill-node", 0, 5, {"step": 9, "step_began_ns": 1000, "typical_step_ns": 2000, "commit_step": 9}, False),  # another
        ("kill-node", 1, NO_STEP, {}, True),
    ],
)
def test_an_injection_is_due_in_the_middle_of_its_step(
    kind: str, target: int, step: int, head: dict[str, Any], due: bool
) -> None:
    node = Node()
    node.run(node.start(0, 1))
    inject = Inject(injection_id=4, kind=kind, target=target, step=step)
    for _ in range(2):  # they are sent again with every recovery
        assert node.order(inject) == []
    heads = {0: Head(**head) if kind == "kill-node" else Head(), 1: Head(**head)}
    commands = node.event(HeadsRead(heads=heads, now_ns=2000))
    assert reports(commands) == ([InjectionDue(injection_id=4, at_ns=2000)] if due else [])
    assert node.order(InjectionAck(injection_id=4)) == (
        [] if not due else [KillNode()] if kind == "kill-node" else [KillProcess(process=1)]
    )
    assert node.order(InjectionAck(injection_id=4)) == []


@pytest.mark.parametrize(
    ("kind", "target", "struck"),
    [
        ("kill-agent", 1, [InjectHere(kind="kill-agent", target=1, process=None)]),
        ("freeze-node", 1, [InjectHere(kind="freeze-node", target=1, process=None)]),
        ("freeze-rank", 1, [InjectHere(kind="freeze-rank", target=1, process=1)]),
        ("corrupt-snapshot", 0, [InjectHere(kind="corrupt-snapshot", target=0, process=0)]),
        ("raise-rank", 1, [Tell(process=1, order=InjectFailure(kind="raise-rank"))]),
        ("partition-node", 1, []),  # the launcher's
        ("kill-supervisor", 0, []),
    ],
)
def test_each_kind_has_its_hand(kind: str, target: int, struck: list[Command]) -> None:
    node = Node()
    node.run(node.start(0, 1))
    node.order(Inject(injection_id=4, kind=kind, target=target, step=NO_STEP))
    assert reports(node.event(HeadsRead(heads={0: Head(), 1: Head()}, now_ns=2000))) == [InjectionDue(injection_id=4, at_ns=2000)]
    assert node.order(InjectionAck(injection_id=4)) == struck


def test_a_replica_is_struck_where_it_is() -> None:
    """Its rank's node says when, the holder strikes."""
    node = Node()
    node.run(node.start(0, 1))
    node.order(Inject(injection_id=4, kind="corrupt-replica", target=2, step=5))
    assert node.event(HeadsRead(heads={0: Head(step=9, step_began_ns=1), 1: Head()}, now_ns=2000)) == []
    assert node.order(InjectionAck(injection_id=4)) == [InjectHere(kind="corrupt-replica", target=2, process=None)]
    assert not node.core.injections


@pytest.mark.parametrize("kind", ["thaw-node", "heal-node", "kill-spare"])
def test_what_no_agent_can_watch_for_is_not_noted(kind: str) -> None:
    node = Node()
    node.run(node.start(0, 1))
    node.order(Inject(injection_id=4, kind=kind, target=1, step=NO_STEP))
    assert not node.core.injections


def test_at_once_does_not_wait_for_a_rank_that_may_come() -> None:
    node = Node()
    node.order(Inject(injection_id=1, kind="kill-rank", target=0, step=NO_STEP))
    assert not node.core.injections
    node.order(Inject(injection_id=2, kind="kill-rank", target=0, step=3))
    assert node.core.injections


# ------------------------------------------------------------ hot stand-ins


def hot_node() -> Node:
    """A spare with two stand-ins, 0 and 1, which get hot for both ranks in generation 1."""
    node = Node()
    node.run(node.order(WarmUp(standins=2)))
    assert [(process, isinstance(order, Role)) for process, order in told(node.get_hot(0, 1))] == [(0, True), (1, True)]
    return node


def test_a_hot_stand_in_is_no_rank_of_its_node() -> None:
    node = hot_node()
    assert (node.core.ranks(), node.core.playing()) == ({}, {})
    prepared = messages.RankPrepared(generation=1, rank=0, live_generation=0, live_step=NO_STEP, commit_step=NO_STEP)
    assert reports(node.event(RankSpoke(process=0, message=prepared))) == [replace(prepared, hot=True)]
    assert not told(node.order(messages.WriteCheckpoint(generation=1)))
    assert not told(node.order(messages.Release(generation=1, step=9)))
    node.order(Inject(injection_id=1, kind="kill-rank", target=0, step=NO_STEP))
    assert not node.core.injections
    assert [order for _, order in told(node.order(Quiesce(generation=2, reason="a rank of another node")))] == [
        Quiesce(generation=2, reason="a rank of another node")
    ] * 2


def test_hot_stand_ins_become_the_ranks_and_their_logs_are_the_ranks_from_then_on() -> None:
    node = hot_node()
    node.order(Quiesce(generation=2, reason="node1 is lost"))
    commands = node.assign(0, 1, generation=2)
    assert not [each for each in commands if isinstance(each, StartProcess | Tell)]
    assert [(each.process, each.rank, each.generation) for each in commands if isinstance(each, NameProcess)] == [
        (0, 0, 2), (1, 1, 2),
    ]  # fmt: skip
    assert [(each.rank, each.pid) for each in reports(commands) if isinstance(each, messages.RankJoined)] == [
        (0, 1000),
        (1, 1001),
    ]
    assert node.core.playing().keys() == {0, 1}


def test_one_that_has_ended_by_then_is_replaced_and_its_end_is_none_of_the_rank() -> None:
    node = hot_node()
    node.order(Quiesce(generation=2, reason="node1 is lost"))
    (exited,) = reports(node.exit(0))
    assert isinstance(exited, RankExited)
    assert exited.hot
    assert exited.generation == 1, "of the order that made it hot: nobody takes it for an end of the rank's process"
    commands = node.assign(0, 1, generation=2)
    assert len([each for each in commands if isinstance(each, StartProcess)]) == 1
    assert node.core.ranks().keys() == {0, 1}


@pytest.mark.parametrize("hot", [True, False])
def test_for_other_ranks_they_end_without_a_word(hot: bool) -> None:
    node = hot_node()
    commands = node.get_hot(generation=1) if hot else node.assign(2, 3, generation=2)
    assert [each.process for each in commands if isinstance(each, KillProcess)] == [0, 1]
    assert not [each for each in reports([*node.exit(0), *node.exit(1)]) if isinstance(each, RankExited)]


def hot_member() -> Node:
    """A member, whose ranks 0 and 1 are processes 0 and 1; 2 and 3 wait, 2 is hot for rank 0."""
    node = Node()
    node.run(node.start(0, 1))
    node.run(node.order(WarmUp(standins=2)))
    assert [(process, order.hot) for process, order in told(node.get_hot(0)) if isinstance(order, Role)] == [(2, True)]
    return node


def prepared(generation: int) -> RankPrepared:
    return RankPrepared(generation=generation, rank=0, live_generation=0, live_step=NO_STEP, commit_step=NO_STEP)


def test_a_member_has_a_rank_and_its_hot_stand_in() -> None:
    node = hot_member()
    assert {rank: each.number for rank, each in node.core.ranks().items()} == {0: 0, 1: 1}
    joined = messages.RankJoined(generation=1, rank=0, pid=1002)
    assert reports(node.event(RankSpoke(process=2, message=joined))) == [replace(joined, hot=True)]
    assert not node.event(RankSpoke(process=2, message=messages.RankRaised(generation=1, rank=0, error="it is not the rank")))
    assert reports(node.event(RankSpoke(process=2, message=prepared(1)))) == [replace(prepared(1), hot=True)]
    assert reports(node.get_hot(0)) == [replace(prepared(1), hot=True)], "asked again"
    assert [process for process, _ in told(node.order(Quiesce(generation=2, reason="")))] == [0, 1, 2]


@pytest.mark.parametrize("early", [True, False], ids=["it answers before it has the rank", "after"])
def test_the_rank_is_lost_and_its_hot_stand_in_is_the_joiner(early: bool) -> None:
    node = hot_member()
    node.event(RankSpoke(process=2, message=prepared(1)))
    node.exit(0)
    node.order(Quiesce(generation=2, reason="rank 0 is lost"))
    if early:
        node.event(RankSpoke(process=2, message=prepared(2)))
    commands = node.assign(0, generation=2)
    assert [(each.process, each.rank) for each in commands if isinstance(each, NameProcess)] == [(2, 0)]
    assert messages.RankJoined(generation=2, rank=0, pid=1002) in reports(commands)
    if not early:
        commands = node.event(RankSpoke(process=2, message=prepared(2)))
    assert prepared(2) in reports(commands)
    assert {rank: each.number for rank, each in node.core.ranks().items()} == {0: 2, 1: 1}


def test_another_rank_of_the_node_is_lost_and_the_hot_stand_in_waits_on() -> None:
    node = hot_member()
    node.exit(1)
    node.order(Quiesce(generation=2, reason="rank 1 is lost"))
    commands = node.assign(1, generation=2)
    assert not [each for each in commands if isinstance(each, KillProcess)]
    assert [(each.process, each.rank) for each in commands if isinstance(each, NameProcess)] == [(3, 1)]
    assert node.core.hot_standins().keys() == {0}


@pytest.mark.parametrize("hot", [True, False], ids=["hot for others", "those of a node that is lost"])
def test_where_the_script_is_a_function_the_same_processes_begin_again_as_other_ranks(hot: bool) -> None:
    node = hot_node()
    for rank in (0, 1):
        node.event(RankSpoke(process=rank, message=replace(prepared(1), rank=rank, repeatable=True)))
    commands = node.get_hot(2, 3) if hot else node.assign(2, 3, generation=2)
    assert not [each for each in commands if isinstance(each, KillProcess | StartProcess)]
    assert [(process, order.rank, order.hot) for process, order in told(commands) if isinstance(order, Role)] == [
        (0, 2, hot), (1, 3, hot),
    ]  # fmt: skip
    assert not node.event(RankSpoke(process=0, message=prepared(2))), "it was said as the rank before"
    again = replace(prepared(2), rank=2)
    assert reports(node.event(RankSpoke(process=0, message=again))) == ([replace(again, hot=True)] if hot else [again])


def test_a_supervisor_that_begins_anew_with_this_node_knows_of_none() -> None:
    node = hot_node()
    again = Welcome(config_json=to_json(CONFIG), generation=1, resumed=True)
    assert not node.order(again)
    killed = node.order(replace(again, resumed=False))
    assert [each.process for each in killed if isinstance(each, KillProcess)] == [0, 1]


def test_they_count_as_stand_ins_until_they_have_the_rank() -> None:
    node = hot_node()
    assert not [each for each in node.order(WarmUp(standins=2)) if isinstance(each, StartProcess)]
    assert len([each for each in node.order(WarmUp(standins=4)) if isinstance(each, StartProcess)]) == 2


def test_the_process_that_serves_stores_is_there_before_a_store_is_asked_for() -> None:
    node = Node()
    assert PrepareStore() in node.order(WarmUp(standins=1))
    assert PrepareStore() not in node.order(WarmUp(standins=0))
