"""deadpool simulate from its command line: what is refused, and what is printed."""

import json
from pathlib import Path

import pytest

from deadpool.cli import main
from deadpool.cli.simulate.measured import measured_job
from deadpool.cli.simulate.paper import STATED_RATIO, paper_rows
from deadpool.cli.simulate.sweep import read_sweep
from deadpool.host.errors import ConfigError

SMALL = ("--nodes", "64", "--steps", "5000", "--runs", "3")


def test_the_published_ratio_follows_from_its_constants() -> None:
    ratios = {(row.step_s, row.swap_s): row.ratio for row in paper_rows()}
    assert ratios[0.9, 31.0] == pytest.approx(STATED_RATIO, abs=0.05)
    assert ratios[1.3, 40.0] == pytest.approx(STATED_RATIO, rel=0.05)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("spares=0:4", (0, 1, 2, 3, 4)),
        ("spares=0:16:4", (0, 4, 8, 12, 16)),
        ("swap-time=5,0.3,30", (5.0, 0.3, 30.0)),
        ("transient-share=0:1:0.25", (0.0, 0.25, 0.5, 0.75, 1.0)),
    ],
)
def test_a_sweep_is_read(text: str, values: tuple[float, ...]) -> None:
    assert read_sweep(text).values == values


@pytest.mark.parametrize(
    "text",
    ["spares", "spares=", "spares=4:0", "spares=0:4:0", "spares=0.5", "spares=0:1:2:3", "spares=-1", "spares=0:1000000",
     "weather=1:2", "swap-time=0", "swap-time=nan", "swap-time=0:inf", "transient-share=0,2"],
)  # fmt: skip
def test_a_wrong_sweep_is_one_line(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["simulate", *SMALL, "--sweep", text]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"deadpool: --sweep {text}: ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--step-time", "0"), "more than 0 s"),
        (("--transient-share", "1.5"), "a share from 0 to 1"),
        (("--failures-per-node-day", "nan"), "how many failures a day"),
        (("--failures-per-rack-day", "0.1"), "--rack-nodes"),
        (("--plot", "x.png"), "--sweep"),
        (("--strategy", "hope"), "hot-swap"),
        (("--from", "nowhere.jsonl"), "nowhere.jsonl"),
        (("--sweep", "spares=0:1", "--plot", "/nowhere/x.png"), "--plot"),
        (("--paper",), "leave --nodes, --steps, --runs away"),
    ],
)
def test_wrong_options_are_one_line(arguments: tuple[str, ...], says: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["simulate", *SMALL, *arguments]) == 2
    captured = capfd.readouterr()
    (line,) = captured.err.splitlines()
    assert says in line
    assert not captured.out


def test_tables_and_json(capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["simulate", *SMALL]) == 0
    shown = capfd.readouterr().out
    assert "hot-swap" in shown
    assert "its losses are not those of the unbroken run" in shown
    assert main.run(["simulate", *SMALL, "--strategy", "hot-swap", "--json"]) == 0
    (found,) = json.loads(capfd.readouterr().out)["strategies"]
    assert found["strategy"] == "hot-swap"
    assert sum(found["spent"].values()) == pytest.approx(1)
    assert main.run(["simulate", *SMALL, "--sweep", "spares=0:2", "--json"]) == 0
    points = json.loads(capfd.readouterr().out)["points"]
    assert [point["spares"] for point in points] == [0, 1, 2] * 4
    assert main.run(["simulate", *SMALL, "--sweep", "swap-time=5,50"]) == 0
    assert main.run(["simulate", "--paper"]) == 0
    assert "18.8" in capfd.readouterr().out


EVENTS = [
    {"time": "2026-01-01T00:00:00.000+00:00", "event": "generation", "generation": 1, "members": ["node0", "node1"]},
    {"time": "2026-01-01T00:00:10.000+00:00", "event": "started", "generation": 1},
    {"time": "2026-01-01T01:00:00.000+00:00", "event": "recovered", "failure_class": "permanent", "total_s": 4.0},
    {"time": "2026-01-01T02:00:00.000+00:00", "event": "recovered", "failure_class": "transient", "total_s": 0.5},
    {"time": "2026-01-01T03:00:00.000+00:00", "event": "recovered", "failure_class": "planned", "total_s": 0.1},
    {"time": "2026-01-02T00:00:10.000+00:00", "event": "job_ended", "exit_code": 0},
]


def test_figures_of_a_real_job_are_taken_unless_an_option_says_otherwise(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "events.jsonl"
    log.write_text("".join(json.dumps(event) + "\n" for event in EVENTS) + '{"time": "2026-')
    assert main.run(["simulate", "--from", str(log), "--steps", "5000", "--runs", "2", "--spares", "1", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["cluster"]["nodes"], found["cluster"]["failures_per_node_day"]) == (2, 1.0)
    assert (found["times"]["swap_s"], found["times"]["transient_s"], found["cluster"]["transient_share"]) == (4.0, 0.5, 0.5)
    assert main.run(["simulate", "--from", str(log), *SMALL, "--swap-time", "7"]) == 0
    assert "Measured: 2 failures in 86400 s on 2 nodes." in capfd.readouterr().out


def test_the_time_of_a_step_is_in_the_summary_beside_the_events(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "events.jsonl"
    log.write_text("".join(json.dumps({"generation": 3} | event) + "\n" for event in EVENTS))
    summary = {"exit_code": 0, "generations": 3, "steps": 1000, "spent_s": {"productive": 250.0}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert main.run(["simulate", "--from", str(log), "--steps", "5000", "--runs", "2"]) == 0
    assert "Measured: 2 failures in 86400 s on 2 nodes, a step takes 0.25 s." in capfd.readouterr().out


def test_events_of_a_job_that_never_ran() -> None:
    with pytest.raises(ConfigError, match="no job that has run"):
        measured_job(EVENTS[:1])


def test_a_plot_needs_its_library_or_is_drawn(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "spares.png"
    exit_code = main.run(["simulate", *SMALL, "--sweep", "spares=0:2", "--plot", str(picture)])
    if exit_code == 2:
        assert "pip install 'deadpool-train[plot]'" in capfd.readouterr().err
    else:
        assert picture.read_bytes().startswith(b"\x89PNG")
