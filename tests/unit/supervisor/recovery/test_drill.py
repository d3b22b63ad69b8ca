"""The drill: at a boundary that is drilled all ranks go back by one step, by each way there is, and then go on."""

from supervising import Scene, snapshot

from deadpool.proto import messages
from deadpool.proto.messages import NO_STEP, CheckpointWritten, DrillOver, DrillReady, KillRanks, SourceKind, StartRanks
from deadpool.supervisor.model.membership import NodeRole
from deadpool.supervisor.model.phase import Phase


def training(**options: object) -> Scene:
    scene = Scene(**({"drill_at": (5,), "checkpoint_dir": "/c"} | options))
    scene.start(commit_step=5)
    scene.forget()
    return scene


def arrive(scene: Scene, *ranks: int, step: int = 5) -> None:
    for rank in ranks or range(4):
        scene.say(scene.home(rank), DrillReady(generation=scene.state.generation, rank=rank, step=step))


def go_back(scene: Scene, *, fresh: tuple[int, ...], to: int = 4) -> dict[int, SourceKind]:
    """The ranks quiesce with S_5 live, the vaults hold S_4 and S_5 of generation 1; all go through; returns the sources."""
    scene.open_store()
    scene.prepare(*({0, 1, 2, 3} - set(fresh)), live_step=5, commit_step=5)
    scene.prepare(*fresh)
    for node in scene.state.roster.live():
        both = [*scene.vault(node.index, to), *scene.vault(node.index, to + 1)]
        scene.report(node.index, *both)
    sources = {source.rank: source.kind for _, order in scene.took(messages.Reform) for source in order.sources}
    assert {order.resume_step for _, order in scene.took(messages.Reform)} == {to}
    scene.bring_up(to)
    assert scene.state.phase is Phase.RUN
    return sources


def ways(scene: Scene) -> list[object]:
    return [note.fields["way"] for note in scene.notes("drilled")]


def test_each_way_leads_back_by_one_step_and_then_the_ranks_go_on() -> None:
    scene = training()
    scene.say(0, CheckpointWritten(step=4, path="/c/step-4", seconds=0.1))
    arrive(scene, 0, 1, 2)
    assert not scene.notes("drilled"), "one is still on its way"
    arrive(scene, 3)
    assert go_back(scene, fresh=()) == dict.fromkeys(range(4), SourceKind.VAULT)
    arrive(scene)
    scene_kills = {rank for _, order in scene.took(KillRanks) for rank in order.ranks}
    assert scene_kills == {1, 3}
    scene.forget()
    assert go_back(scene, fresh=(1, 3)) == dict.fromkeys(range(4), SourceKind.VAULT)
    scene.forget()
    arrive(scene)
    assert [(node, order.ranks) for node, order in scene.took(KillRanks)] == [(1, (2, 3))]
    assert scene.state.roster.nodes["node1"].role is NodeRole.SPARE
    moved = go_back(scene, fresh=(2, 3))
    assert moved == dict.fromkeys((0, 1), SourceKind.VAULT) | dict.fromkeys((2, 3), SourceKind.REPLICA), "node1 counts as lost"
    scene.forget()
    arrive(scene)
    scene.open_store()
    assert sorted(node for node, _ in scene.took(StartRanks)) == [0, 2]
    for rank in range(4):
        scene.say(scene.home(rank), messages.RankJoined(generation=scene.state.generation, rank=rank, pid=2000 + rank))
    arrive(scene)
    assert ways(scene) == ["first", "in-place", "process", "spare", "checkpoint"]
    assert {(node, order.step) for node, order in scene.took(DrillOver)} == {(0, 5), (2, 5)}
    assert scene.state.phase is Phase.RUN
    assert not scene.notes("failure")


def test_a_way_that_the_job_cannot_take_is_left_out_and_said() -> None:
    scene = training(spares=0, checkpoint_dir="")
    arrive(scene)
    go_back(scene, fresh=())
    arrive(scene)
    go_back(scene, fresh=(1, 3))
    arrive(scene)
    assert ways(scene) == ["first", "in-place", "process"]
    assert [note.fields["way"] for note in scene.notes("drill_left_out")] == ["spare", "checkpoint"]
    assert scene.took(DrillOver)


def test_a_failure_on_the_way_takes_the_same_way_once_more() -> None:
    scene = training()
    arrive(scene)
    go_back(scene, fresh=())
    scene.killed(2)
    go_back(scene, fresh=(2,))
    arrive(scene)
    (drilled,) = [note for note in scene.notes("drilled") if note.fields["way"] == "in-place"]
    assert drilled.generation == 3


def test_a_checkpoint_that_does_not_come_is_waited_for_and_then_said() -> None:
    scene = training(spares=0)
    for fresh in ((), (1, 3)):
        arrive(scene)
        go_back(scene, fresh=fresh)
    arrive(scene)
    assert not scene.took(DrillOver)
    scene.wait(31)
    (failed,) = scene.notes("drill_failed")
    assert failed.fields["reason"] == "no checkpoint of step 4 was written within 30 s"
    assert scene.took(DrillOver)


def test_a_drill_alone_ends_the_job_and_who_comes_later_is_told_that_it_is_over() -> None:
    scene = training(spares=0, checkpoint_dir="", drill_only=True)
    for fresh in ((), (1, 3)):
        arrive(scene)
        go_back(scene, fresh=fresh)
    arrive(scene)
    assert scene.end().exit_code == 0
    going_on = training(spares=0, checkpoint_dir="")
    going_on.state.drill.over.add(5)
    arrive(going_on, 3)
    assert {order.step for _, order in going_on.took(DrillOver)} == {5}
    assert going_on.state.drill.step == NO_STEP


def test_what_a_vault_holds_of_the_boundary_itself_is_a_dead_branch() -> None:
    scene = training()
    arrive(scene)
    assert scene.state.progress.commit_step != NO_STEP
    scene.open_store()
    scene.prepare(0, 1, 2, 3, live_step=5, commit_step=5)
    for node in (0, 1, 2):
        scene.report(node, *(snapshot(rank, 5) for rank in range(4) if scene.home(rank) == node))
    assert not scene.took(messages.Reform), "nobody holds the step before"
