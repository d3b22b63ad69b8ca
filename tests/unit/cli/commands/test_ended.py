"""What is left of a job once it has ended: `deadpool status`, `events` and `logs` answer from its logs."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from deadpool.cli import main
from deadpool.cli.commands import tables
from deadpool.cli.commands.ended import EndedJob, as_json, ended_job
from deadpool.cli.launcher.past_jobs import find_logs, remember

RECOVERED = {
    "event": "recovered", "cause": "node1 lost: its stream was closed", "failure_class": "permanent", "ranks": [2, 3],
    "spare": "node2", "resume_step": 7, "steps_reexecuted": 1, "total_s": 0.56,
}  # fmt: skip


def lines(*events: dict[str, Any]) -> list[str]:
    return [
        json.dumps({"time": f"2026-11-30T09:00:{index:02}.000+00:00", "generation": index, **event})
        for index, event in enumerate(events)
    ]


def shown(job: EndedJob) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(tables.ended_view(job))
    assert isinstance(console.file, io.StringIO)
    return " ".join(console.file.getvalue().split())


def test_the_end_is_named_with_what_went_before() -> None:
    end = {"event": "job_ended", "exit_code": 1, "reason": "rank 3 raised ValueError", "error": "ValueError: no such word"}
    job = ended_job("gpt", "/logs/gpt", [*lines({"event": "node_joined"}, RECOVERED, end, {"event": "node_lost"}), '{"cut'])
    assert (job.exit_code, job.reason, job.generation, job.duration_s) == (1, "rank 3 raised ValueError", 2, 2.0)
    for part in (
        "gpt ended: rank 3 raised ValueError (exit code 1) ValueError: no such word",
        "2026-11-30 09:00:02 UTC, after 2 s, generation 2; logs in /logs/gpt",
        "permanent: node1 lost: its stream was closed",
        "spare node2 took ranks 2, 3, resumed at step 7, 1 step again",
    ):
        assert part in shown(job)
    plain = as_json(job)
    assert (plain["phase"], plain["exit_code"], plain["recoveries"][0]["class"]) == ("ended", 1, "permanent")


def test_how_far_it_came_and_where_its_time_went() -> None:
    spent = {"productive": 90.0, "recovering": 10.0, "node_s": 300.0}
    summary = {"exit_code": 143, "generations": 1, "steps": 272, "until": 1200, "commit_step": 271, "spent_s": spent,
               "goodput_spares_charged": 0.6, "reported": {"loss": 2.53}, "another_since_step": None}  # fmt: skip
    said = lines({"event": "node_joined"}, {"event": "job_ended", "exit_code": 143, "reason": "deadpool stop"})
    job = ended_job("gpt", "/l", said, json.dumps(summary))
    assert (
        "272 steps of 1200, committed 271 loss 2.53 goodput 90.0% (60.0% with spares paid) of 1:40: recovering 10.0 s"
        in shown(job)
    )
    assert as_json(job)["summary"]["steps"] == 272
    assert ended_job("gpt", "/l", said, json.dumps(summary | {"generations": 2})).summary == {}, "of another job in that folder"
    assert ended_job("gpt", "/l", said, "{cut").summary == {}


def test_of_several_jobs_in_one_log_folder_the_last_one_counts() -> None:
    first = lines({"event": "node_joined"}, RECOVERED, {"event": "job_ended", "exit_code": 1, "reason": "SIGTERM"})
    assert ended_job("gpt", "/l", [*first, *lines({"event": "node_joined"})]).exit_code is None
    again = ended_job("gpt", "/l", [*first, *lines({"event": "node_joined"}, {"event": "job_ended", "exit_code": 0})])
    assert (again.exit_code, again.recoveries, again.generation) == (0, (), 1)


@pytest.mark.parametrize("written", [[], lines({"event": "started"})])
def test_a_job_that_was_killed_with_its_launcher_has_no_end(written: list[str]) -> None:
    job = ended_job("gpt", "/logs/gpt", written)
    assert (job.exit_code, job.recoveries) == (None, ())
    assert "supervisor and launcher were killed" in shown(job)


@pytest.fixture
def past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the logs of two jobs that have ended, `a` and `b`, and nothing that runs."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in ("a", "b"):
        node = tmp_path / name / "node0"
        node.mkdir(parents=True)
        end = {"event": "job_ended", "exit_code": 0, "reason": "done"}
        (tmp_path / name / "events.jsonl").write_text("".join(f"{line}\n" for line in lines({"event": "started"}, end)))
        (node / "rank-0-gen1.log").write_text(f"printed by {name}\n")
        (node / "rank-1-gen1.log").touch()
        remember(name, str(tmp_path / name))
    return tmp_path


def test_the_newest_is_shown_unless_another_is_named(past: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert find_logs(None) == find_logs("b") == ("b", past / "b")
    assert find_logs(str(past / "a")) == ("a", past / "a")
    assert (find_logs("c"), find_logs(str(past / "c"))) == (None, None)
    assert main.run(["status"]) == main.run(["status", "--watch", "--job", "a"]) == 0
    assert [line.split("  ")[0] for line in capfd.readouterr().out.splitlines() if "done" in line] == ["b", "a"]
    remember("a", str(past / "a"))
    assert main.run(["status", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["job_id"] == "a"


def test_events_and_logs_are_read_again(past: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["events", "--follow", "--json"]) == 0
    assert [json.loads(line)["event"] for line in capfd.readouterr().out.splitlines()] == ["started", "job_ended"]
    assert main.run(["logs", "0", "--job", "a"]) == main.run(["logs", "1"]) == 0
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("printed by a\n", "deadpool: rank 1 has printed nothing\n")
    assert main.run(["logs", "7"]) == 2
    assert "rank 7: no log in" in capfd.readouterr().err


def test_what_needs_a_running_job_says_that_none_runs(past: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for command in (["stop"], ["inject", "kill-rank", "0"], ["drain", "node0"]):
        assert main.run(command) == 2
        assert "no job is running" in capfd.readouterr().err


def test_logs_that_are_gone_are_not_offered(past: Path) -> None:
    (past / "b" / "events.jsonl").unlink()
    assert find_logs(None) == ("a", past / "a")
    (past / "deadpool" / ".jobs.json").write_text("[{")
    assert find_logs(None) is None
