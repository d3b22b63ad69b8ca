"""What a new supervisor knows: the journals before it, to the last whole line that counts."""

import json
from pathlib import Path
from typing import Any

import pytest
from supervising import Scene

from deadpool.proto.terms import claim_term, journal_path
from deadpool.supervisor.core import Job
from deadpool.supervisor.journal.event_log import EventLog
from deadpool.supervisor.journal.journal import Journal, LineFile, SupersededError, event_line
from deadpool.supervisor.journal.replay import Clock, ReplayedJob, read_past
from deadpool.supervisor.model.commands import Note
from deadpool.supervisor.model.events import StopRequested, SupervisorStarted


def begin(folder: Path, scene: Scene) -> tuple[ReplayedJob, Clock, dict[str, Any], LineFile]:
    """The next term begins, as the process does it."""
    term = next(each for each in range(1, 99) if claim_term(folder, each))
    past, clock, first = read_past(folder, term, scene.config, events_at=7)
    file = LineFile(journal_path(folder, term))
    file.write(json.dumps(first).encode())
    return past, clock, first, file


def begun() -> Scene:
    """A job that runs; its last event is no heartbeat, for those are written only with the next other one."""
    scene = Scene()
    scene.start(commit_step=4)
    scene.inject("kill-rank", 3, 90)
    return scene


def play(scene: Scene, job: Job, file: LineFile, since: int = 0) -> None:
    journal = Journal(job, file)
    for event, now_s in scene.past[since:]:
        if event is None:
            journal.tick(now_s=now_s)
        else:
            journal.handle(event, now_s=now_s)


def test_each_term_goes_on_where_the_one_before_was(tmp_path: Path) -> None:
    scene = begun()
    past, _, _, first = begin(tmp_path, scene)
    assert past.last_s is None
    play(scene, past.job, first)
    played = len(scene.past)
    past, _, _, second = begin(tmp_path, scene)
    scene.lose(1)
    play(scene, past.job, second, played)
    assert past.job.state == scene.state
    past, clock, head, third = begin(tmp_path, scene)
    assert past.job.state == scene.state
    assert past.last_s == scene.now_s
    assert past.last_event_id == scene.last_event_id
    assert past.pulse.heartbeats.keys() == {"node0", "node1", "node2"}
    assert (head["term"], head["follows"]["term"], head["events_at"]) == (3, 2, 7)
    assert clock.offset_s == 0
    for file in (first, second, third):
        file.close()


def test_what_a_superseded_supervisor_still_writes_is_in_nobodys_past(tmp_path: Path) -> None:
    scene = begun()
    past, _, _, first = begin(tmp_path, scene)
    play(scene, past.job, first)
    successor, _, _, second = begin(tmp_path, scene)
    first.write(event_line(StopRequested(event_id=99, reason="too late", exit_code=143), now_s=200.0))
    past, _, _, third = begin(tmp_path, scene)
    assert past.job.state == successor.job.state == scene.state
    for file in (first, second, third):
        file.close()


@pytest.mark.parametrize(
    "tail", [b'{"now_s":1', b'{"now_s":1}\xff\x00', b"garbage\n", b'[1]\n{"now_s":5,"tick":true}\n', b"\x00" * 40]
)
def test_a_torn_or_spoilt_end_is_as_if_never_written(tmp_path: Path, tail: bytes) -> None:
    scene = begun()
    past, _, _, first = begin(tmp_path, scene)
    play(scene, past.job, first)
    first.close()
    with journal_path(tmp_path, 1).open("ab") as file:
        file.write(tail)
    past, _, _, second = begin(tmp_path, scene)
    assert past.job.state == scene.state
    second.close()


def test_a_term_that_was_claimed_and_never_began_is_passed_over(tmp_path: Path) -> None:
    scene = begun()
    past, _, _, first = begin(tmp_path, scene)
    play(scene, past.job, first)
    assert claim_term(tmp_path, 2)
    journal_path(tmp_path, 2).write_bytes(b'{"term": 2, "foll')  # its machine died in the first line
    past, _, head, third = begin(tmp_path, scene)
    assert head["follows"]["term"] == 1
    assert past.job.state == scene.state
    first.close()
    third.close()


def test_the_clock_goes_on_where_it_was_on_another_machine(tmp_path: Path) -> None:
    scene = Scene()
    past, _, head, first = begin(tmp_path, scene)
    scene.now_s = head["now_s"] + 1000.0
    scene.start()
    play(scene, past.job, first)
    first.close()
    path = journal_path(tmp_path, 1)
    path.write_text(path.read_text().replace(head["boot_id"], "another machine"))
    past, clock, _, second = begin(tmp_path, scene)
    assert past.last_s == scene.now_s
    assert scene.now_s <= clock() < scene.now_s + 60
    second.close()


def test_no_order_leaves_a_superseded_supervisor(tmp_path: Path) -> None:
    scene = Scene()
    scene.start()
    file = LineFile(tmp_path / "journal")
    journal = Journal(scene.job, file, is_over=lambda: True)
    with pytest.raises(SupersededError):
        journal.handle(StopRequested(event_id=99, reason="x", exit_code=143), now_s=200.0)
    file.close()


def test_the_last_words_get_into_the_events_once(tmp_path: Path) -> None:
    file = LineFile(tmp_path / "events")
    log = EventLog(file, ['{"event": "a", "caused_by": "1 Hello"}'])
    log.add_if_missing(
        [
            Note(cause="1 Hello", event="a", generation=1, fields={}),
            Note(cause="1 Hello", event="b", generation=1, fields={"x": 1}),
        ]
    )
    file.close()
    assert [json.loads(line)["event"] for line in (tmp_path / "events").read_text().splitlines()] == ["b"]


def test_deadlines_move_while_there_is_no_supervisor() -> None:
    scene = begun()
    scene.lose(1)
    before = scene.job.next_deadline_s()
    assert before is not None
    scene.handle(SupervisorStarted(event_id=900, term=1, away_s=0.0))
    assert scene.job.next_deadline_s() == before
    scene.handle(SupervisorStarted(event_id=901, term=2, away_s=7.0))
    after = scene.job.next_deadline_s()
    assert after is not None
    assert after >= before + 7.0
    assert scene.notes("supervisor_started")[0].fields == {"term": 2}
