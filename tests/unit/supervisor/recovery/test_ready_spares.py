"""`--spare-readiness hot`: which spare builds which seat's ranks beside those that play them, and what a failure then costs."""

from supervising import Scene

from deadpool.proto import messages
from deadpool.proto.config import Places, Readiness
from deadpool.proto.messages import NO_STEP, Reading
from deadpool.supervisor.model.phase import Phase


def training(**options: object) -> Scene:
    scene = Scene(spare_readiness=Readiness.HOT, **options)
    scene.start()
    assert not scene.took(messages.Assign), "nothing is committed: a joiner could learn nothing of its predecessor"
    scene.heartbeat(step=5, commit_step=4)
    return scene


def roles(scene: Scene) -> dict[str, int]:
    return {node_id: hot.seat for node_id, hot in scene.state.recovery.hot.items()}


def rehearse(scene: Scene, node: int) -> None:
    for rank in scene.state.recovery.hot[f"node{node}"].ranks:
        generation = scene.state.generation
        scene.say(node, messages.RankJoined(generation=generation, rank=rank, pid=3000 + rank, hot=True))
        prepared = messages.RankPrepared(
            generation=generation, rank=rank, live_generation=0, live_step=NO_STEP, commit_step=NO_STEP, hot=True
        )
        scene.say(node, prepared)


def ill(scene: Scene, node: int) -> None:
    readings = (Reading(name="gpu_ecc_uncorrected", value=1.0),)
    scene.say(node, messages.Heartbeat(generation=scene.state.generation, readings=readings))


def test_so_many_spares_cover_so_many_seats() -> None:
    scene = training(nnodes=3, nproc_per_node=1, spares=2)
    assert roles(scene) == {"node3": 0, "node4": 1}
    assert [(node, order.hot, [each.rank for each in order.placements]) for node, order in scene.took(messages.Assign)] == [
        (3, True, [0]), (4, True, [1]),
    ]  # fmt: skip
    assert {node: order.standins for node, order in scene.took(messages.WarmUp)} == {0: 1, 1: 1, 2: 1, 3: 2, 4: 2}


def test_a_spare_gets_hot_for_the_seat_whose_replicas_it_keeps() -> None:
    scene = Scene(spare_readiness=Readiness.HOT, nproc_per_node=1, spares=2, place_replicas=Places.SPARES)
    scene.start()
    assert scene.state.recovery.keepers == {0: ("node2",), 1: ("node3",)}
    ill(scene, 1)  # so its seat comes first
    scene.heartbeat(step=5, commit_step=4)
    assert list(roles(scene).items()) == [("node3", 1), ("node2", 0)]


def test_a_spare_gets_hot_for_a_seat_with_which_no_rack_has_too_many_nodes() -> None:
    racks = (("node0", "r1"), ("node1", "r2"), ("node2", "r2"), ("node3", "r1"))
    assert roles(training(nproc_per_node=1, spares=2, topology=racks)) == {"node3": 0, "node2": 1}


def test_the_node_fails_for_which_a_spare_is_hot() -> None:
    scene = training()
    scene.heartbeat(step=6, commit_step=5)
    rehearse(scene, 2)
    scene.forget()
    scene.lose(0)
    assert scene.state.roster.seats == ["node2", "node1"]
    assert [(node, order.hot) for node, order in scene.took(messages.Assign)] == [(2, False)]
    scene.recover(step=5, survivors=[2, 3], joiners=[0, 1])
    scene.bring_up(5)
    (record,) = scene.state.recovery.records
    assert (record.spare, record.moved) == ("node2", (0, 1))
    assert not scene.state.recovery.hot


def test_another_node_fails_and_its_processes_begin_again() -> None:
    scene = training(spares=2, nnodes=3, nproc_per_node=1)
    scene.lose(2)
    assert scene.state.roster.seats == ["node0", "node1", "node3"], "both are hot for other seats: the first one takes it"
    assert roles(scene) == {"node4": 1}
    scene.recover(step=4, survivors=[0, 1], joiners=[2])
    scene.bring_up(4)
    assert scene.state.phase is Phase.RUN
    assert roles(scene) == {"node4": 1}


def test_a_node_that_has_failed_before_comes_first_and_one_that_is_not_well_before_it() -> None:
    scene = training(nnodes=3, nproc_per_node=1, spares=1)
    assert roles(scene) == {"node3": 0}
    ill(scene, 1)
    assert roles(scene) == {"node3": 1}
    ill(scene, 2)
    assert roles(scene) == {"node3": 1}, "one is as good as the other"
    scene = training(nnodes=3, nproc_per_node=1, spares=0)
    scene.killed(2)
    scene.recover(step=4, survivors=[0, 1], joiners=[2])
    scene.bring_up(4)
    scene.hello(3)
    assert roles(scene) == {"node3": 2}


def test_one_that_cannot_get_hot_is_not_asked_again_and_takes_a_seat_as_a_warm_one() -> None:
    scene = training()
    scene.say(2, messages.RankExited(generation=1, rank=0, pid=7, exit_code=1, log_tail="Address already in use", hot=True))
    assert not scene.state.recovery.hot
    scene.heartbeat(step=7, commit_step=6)
    assert len(scene.notes("gets_hot")) == 1
    scene.lose(1)
    assert scene.state.roster.seats == ["node0", "node2"]


def test_a_drain_of_the_node_that_a_spare_is_hot_for_begins_immediately_and_any_other_takes_that_spare() -> None:
    scene = training()
    rehearse(scene, 2)
    assert scene.drain("node0") == ""
    assert scene.state.phase is Phase.RECOVER
    scene = training()
    rehearse(scene, 2)
    generation = scene.state.generation
    assert scene.drain("node1") == ""
    assert scene.state.generation == generation, "it is not hot for that seat yet"
    assert roles(scene) == {"node2": 1}
    rehearse(scene, 2)
    assert scene.state.phase is Phase.RECOVER


def test_cold_spares_keep_no_stand_ins() -> None:
    scene = Scene(spare_readiness=Readiness.COLD)
    scene.start()
    assert {node: order.standins for node, order in scene.took(messages.WarmUp)} == {0: 1, 1: 1, 2: 0}


def stand_by(scene: Scene, node: int, standins: int) -> None:
    scene.say(node, messages.Heartbeat(generation=scene.state.generation, standins_ready=standins))


def test_a_spare_that_is_not_ready_any_more_is_said_and_when_it_is_again() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    stand_by(scene, 2, 1)
    assert not scene.notes("spare_not_ready"), "it has not been ready yet"
    for standins in (2, 2, 1, 0, 3):
        stand_by(scene, 2, standins)
    stand_by(scene, 0, 0)  # no spare
    assert [(each.event, each.fields) for each in scene.notes("spare_ready") + scene.notes("spare_not_ready")] == [
        ("spare_ready", {"node": "node2", "again": False}),
        ("spare_ready", {"node": "node2", "again": True}),
        ("spare_not_ready", {"node": "node2", "standins": 1}),
    ]


def test_the_loss_of_a_spare_says_how_many_are_left() -> None:
    scene = Scene(spares=2)
    scene.start(commit_step=4)
    scene.lose(3)
    scene.lose(1)
    assert [each.fields.get("spares_left") for each in scene.notes("node_lost")] == [1, None]


# ------------------------------------------------------------ on members, for their own ranks


def members_hot(scene: Scene) -> dict[str, tuple[int, ...]]:
    return {node_id: hot.ranks for node_id, hot in scene.state.recovery.hot_members.items()}


def with_standins(**options: object) -> Scene:
    scene = Scene(hot_standins=1, **options)
    scene.start()
    scene.heartbeat(step=5, commit_step=4)
    return scene


def rehearse_on(scene: Scene, node: int) -> None:
    for rank in scene.state.recovery.hot_members[f"node{node}"].ranks:
        generation = scene.state.generation
        scene.say(node, messages.RankJoined(generation=generation, rank=rank, pid=3000 + rank, hot=True))
        prepared = messages.RankPrepared(
            generation=generation, rank=rank, live_generation=0, live_step=NO_STEP, commit_step=NO_STEP, hot=True
        )
        scene.say(node, prepared)


def test_each_member_has_a_stand_in_that_gets_hot_beside_the_rank() -> None:
    scene = with_standins()
    assert members_hot(scene) == {"node0": (0,), "node1": (2,)}
    assert {node: order.standins for node, order in scene.took(messages.WarmUp)} == {0: 2, 1: 2, 2: 2}
    pids = [rank.pid for rank in scene.state.roster.ranks]
    rehearse_on(scene, 0)
    assert [rank.pid for rank in scene.state.roster.ranks] == pids, "what a stand-in says is not about the rank's process"
    assert scene.state.recovery.hot_members["node0"].ready


def test_a_lost_rank_comes_back_in_it_and_next_time_that_rank_comes_first() -> None:
    scene = with_standins()
    rehearse_on(scene, 1)
    scene.forget()
    scene.killed(3)
    assert [(node, order.hot, [each.rank for each in order.placements]) for node, order in scene.took(messages.Assign)] == [
        (1, False, [3])
    ]
    scene.recover(step=4, survivors=[0, 1, 2], joiners=[3])
    scene.bring_up(4)
    assert scene.state.phase is Phase.RUN
    assert members_hot(scene) == {"node0": (0,), "node1": (3,)}
    rehearse_on(scene, 1)
    scene.heartbeat(step=7, commit_step=6)
    scene.forget()
    scene.killed(3)
    assert "node1" not in members_hot(scene), "it is the joiner"


def test_one_that_ends_is_not_started_again_and_with_its_node_all_are_gone() -> None:
    scene = with_standins()
    scene.forget()
    scene.say(0, messages.RankExited(generation=1, rank=0, pid=7, exit_code=1, log_tail="out of memory", hot=True))
    assert scene.state.phase is Phase.RUN
    assert [(node, order.hot, order.placements) for node, order in scene.took(messages.Assign)] == [(0, True, ())]
    scene.heartbeat(step=7, commit_step=6)
    assert members_hot(scene) == {"node1": (2,)}
    scene.lose(1)
    assert members_hot(scene) == {}
