"""What is written before the orders are sent, and that it is enough."""

import itertools
import json
from pathlib import Path

import pytest
from supervising import Scene, replica

from deadpool.proto import messages
from deadpool.proto.config import JobConfig
from deadpool.supervisor.core import Job
from deadpool.supervisor.journal.journal import BATCH_MAX, Journal, LineFile, event_line, parse_event
from deadpool.supervisor.journal.replay import ReplayedJob, entries, whole_bytes
from deadpool.supervisor.model.events import DrainRequested, Event, FromAgent, InjectRequested, NodesLost, StopRequested


def _story() -> Scene:
    scene = Scene()
    scene.start(commit_step=4)
    for step in range(5, 9):
        scene.heartbeat(step=step, commit_step=step - 1)
    scene.inject("kill-rank", 3, 9)
    scene.say(0, messages.RankBroken(generation=1, rank=0, error="closed"))
    scene.wait(1.0)
    scene.recover(step=8, survivors=[0, 1, 2, 3], joiners=[])
    scene.bring_up(8)
    scene.lose(1)
    scene.heartbeat(step=8, commit_step=8, nodes=[0])
    scene.prepare(0, 1, live_step=8, commit_step=8)
    return scene


def _journalled(scene: Scene, path: Path) -> Job:
    job = Job(scene.config)
    file = LineFile(path)
    journal = Journal(job, file)
    for event, now_s in scene.past:
        if event is None:
            journal.tick(now_s=now_s)
        else:
            journal.handle(event, now_s=now_s)
    file.close()
    return job


def replay(path: Path, config: JobConfig) -> Job:
    past = ReplayedJob(job=Job(config))
    for entry in entries(path, whole_bytes(path)):
        past.act(entry)
    return past.job


def test_replay_gives_an_equal_job(tmp_path: Path) -> None:
    scene = _story()
    job = _journalled(scene, tmp_path / "journal")
    assert replay(tmp_path / "journal", scene.config).state == job.state == scene.state


def test_only_the_last_heartbeat_before_an_event_is_written(tmp_path: Path) -> None:
    scene = _story()
    _journalled(scene, tmp_path / "journal")
    lines = [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()]
    heartbeats = [node for line in lines for node in line.get("heartbeats", {"nodes": []})["nodes"]]
    heartbeats += [line for line in lines if line.get("event", {}).get("message") == "Heartbeat"]
    said = [event for event, _ in scene.past if isinstance(event, FromAgent) and isinstance(event.message, messages.Heartbeat)]
    assert 0 < len(heartbeats) < len(said) / 2


def test_what_comes_together_is_written_together_in_order(tmp_path: Path) -> None:
    scene = _story()
    file = LineFile(tmp_path / "journal")
    journal, together = Journal(Job(scene.config), file), 0
    for (is_tick, now_s), group in itertools.groupby(scene.past, key=lambda each: (each[0] is None, each[1])):
        batch = [event for event, _ in group if event is not None][:BATCH_MAX]
        together = max(together, len(batch))
        if is_tick:
            journal.tick(now_s=now_s)
        else:
            journal.handle(*batch, now_s=now_s)
    file.close()
    assert together > 5
    assert replay(tmp_path / "journal", scene.config).state == journal.job.state == scene.state


def test_the_notes_of_all_lines_that_were_written_together_are_known(tmp_path: Path) -> None:
    """A supervisor that dies after writing them may not have got any of them into the events."""
    scene = _story()
    _journalled(scene, tmp_path / "journal")
    past = ReplayedJob(job=Job(scene.config))
    for entry in entries(tmp_path / "journal", whole_bytes(tmp_path / "journal")):
        past.act(entry)
    known = [(note.cause, note.event) for note in past.notes]
    assert {event for _, event in known} >= {"hooked", "injection_armed", "plan", "recovered", "node_lost"}


def test_torn_last_line_is_left_out(tmp_path: Path) -> None:
    scene = _story()
    _journalled(scene, tmp_path / "journal")
    whole = (tmp_path / "journal").read_bytes()
    *_, last = whole.splitlines()
    (tmp_path / "torn").write_bytes(whole[:-5])
    (tmp_path / "shorter").write_bytes(whole[: -len(last) - 1])
    torn = replay(tmp_path / "torn", scene.config)
    assert torn.state == replay(tmp_path / "shorter", scene.config).state
    assert torn.state != scene.state


def test_commands_come_only_after_the_line_is_written(tmp_path: Path) -> None:
    job = Job(Scene().config)
    file = LineFile(tmp_path / "journal")
    journal = Journal(job, file)
    hello = messages.Hello(node_id="node0", hint=0, host="h", port=1, pid=1, generation=0)
    commands = journal.handle(FromAgent(event_id=1, node_id="node0", message=hello), now_s=1.5)
    assert commands
    assert json.loads((tmp_path / "journal").read_text())["now_s"] == 1.5
    file.close()


@pytest.mark.parametrize(
    "event",
    [
        NodesLost(event_id=7, lost={"node1": "silent for 3.1 s"}),
        StopRequested(event_id=8, reason="SIGTERM", exit_code=143),
        InjectRequested(event_id=9, kind="kill-rank", target=3, step=-1),
        DrainRequested(event_id=9, node="node1", reason="repair", undo=True),
        FromAgent(
            event_id=10,
            node_id="node0",
            message=messages.VaultReport(
                generation=3,
                slots=(
                    replica(1, 1 << 40, 2, [[0, 2]]),
                ),
            ),
        ),
        FromAgent(event_id=11, node_id="node0", message=messages.Stopped()),
        FromAgent(event_id=12, node_id="node0", message=messages.Heartbeat(generation=1, cpu_share=0.1)),
    ],
    ids=lambda event: type(event).__name__,
)  # fmt: skip
def test_events_survive_the_file(event: Event) -> None:
    entry = json.loads(event_line(event, now_s=0.1))
    assert entry["now_s"] == 0.1
    assert parse_event(entry["event"]) == event


def test_full_disk_ends_the_journal_and_not_the_job(capfd: pytest.CaptureFixture[str]) -> None:
    file = LineFile(Path("/dev/full"))
    file.write(b"one")
    file.write(b"two")
    file.close()
    assert capfd.readouterr().err.count("/dev/full") == 1
