"""deadpool-launch's command line: bad input gets one clear line and exit code 2; options and JobConfig are one list."""

import dataclasses
from pathlib import Path

import pytest
from command_line import plan

from deadpool.cli import launch
from deadpool.cli.options import settings
from deadpool.cli.plan.options import LaunchOptions
from deadpool.host.errors import ConfigError
from deadpool.proto.config import JobConfig

# Fields that no option sets: from the rest of the command line or the environment.
ELSEWHERE = {"command", "entry", "python", "standalone", "min_nnodes", "run_id", "together", "drill_only"}


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A script that must not run, in a folder where relative paths and job folders harm nobody."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = tmp_path / "script.py"
    path.write_text("raise SystemExit('must not run')\n")
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--frobnicate", "SCRIPT"], "No such option '--frobnicate'"),
        ([], "Missing argument 'SCRIPT'"),
        (["missing.py"], "script missing.py: no such file"),
        (["/"], "script /: a folder without __main__.py"),
        (["--no-python", "no-such-program"], "program no-such-program: not found"),
        (["--nproc-per-node", "0", "SCRIPT"], "'--nproc-per-node': 0 is too small"),
        (["--nproc_per_node", "tpu", "SCRIPT"], "'tpu' is not a number, nor one of auto, cpu, gpu, xpu"),
        (["--nnodes", "0", "SCRIPT"], "'--nnodes': 0 is too small"),
        (["--nnodes", "4:1", "SCRIPT"], "MAX is less than MIN"),
        (["--nnodes", "1:", "SCRIPT"], "is not a number, nor MIN:MAX"),
        (["-r", "7", "SCRIPT"], "--redirects 7: write 0, 1, 2 or 3"),
        (["--local-ranks-filter", "a", "SCRIPT"], "write local ranks as 0,1,2"),
        (["--signals-to-handle", "SIGTERM,SIGKILL", "SCRIPT"], "'SIGKILL' is not a signal that can be handled"),
        (["--spares=-1", "SCRIPT"], "'--spares': -1: must be 0 or more"),
        (["--spares", "1.5", "SCRIPT"], "'--spares': 1.5: write a whole number, 0 or more"),
        (["--spares", "9" * 40, "SCRIPT"], "write a whole number, 0 or more"),
        (["--spares", "100000000", "SCRIPT"], "all nodes are on this machine, 1024 at most"),
        (["--dashboard", "0", "SCRIPT"], "'--dashboard': 0: a port is 1 to 65535"),
        (["--dashboard=here", "SCRIPT"], "'--dashboard': here: write PORT or HOST:PORT"),
        (["--port", "70000", "SCRIPT"], "'--port': 70000: must be 1 to 65535"),
        (["--journal", "/dev/null/j", "SCRIPT"], "no journal can be written there"),
        (["--inject", "kill-cat:0@3", "SCRIPT"], "unknown kind 'kill-cat'"),
        (["--failure-rules", "no.toml", "SCRIPT"], "'--failure-rules': File 'no.toml' does not exist"),
        (["--failure-rules", "SCRIPT", "SCRIPT"], "not TOML"),
        (["--job-id", "../up", "SCRIPT"], "--job-id ../up: use letters"),
        (["--job-id", "x" * 48, "--nnodes", "1000", "SCRIPT"], "too long for a socket's path"),
        (["--nnodes", "2", "--rdzv-endpoint", "host:0", "SCRIPT"], "write HOST:PORT"),
        (["--summary-json", "/no/such/folder/s.json", "SCRIPT"], "cannot write to /no/such/folder"),
        (["--log-dir", "/dev/null/logs", "SCRIPT"], "--log-dir /dev/null/logs"),
        (["--checkpoint-dir", "/dev/null/c", "SCRIPT"], "--checkpoint-dir /dev/null/c"),
        (["--resume", "nowhere", "SCRIPT"], "no complete checkpoint there"),
        (["--hang-timeout", "nan", "SCRIPT"], "'--hang-timeout': nan: write a number of seconds, as 30 or 0.5"),
        (["--hang-timeout", "inf", "SCRIPT"], "'--hang-timeout': inf: write a number of seconds"),
        (["--hang-timeout=-1", "SCRIPT"], "'--hang-timeout': -1: must be more than 0 s"),
        (["--hang-timeout", "soon", "SCRIPT"], "'--hang-timeout': soon: write a number of seconds"),
        (["--heartbeat-timeout", "0.5", "SCRIPT"], "'--heartbeat-timeout': 0.5: must be at least 1 s"),
        (["--shutdown-timeout", "-inf", "SCRIPT"], "'--shutdown-timeout': -inf: write a number of seconds"),
        (["--gres", "gpu:1", "SCRIPT"], "--gres is an option of sbatch and srun: put it there"),
        (["-N", "4", "SCRIPT"], "-N is an option of sbatch and srun"),
    ],
)
def test_bad_input_gets_one_line(
    script: str, arguments: list[str], words: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert launch.run([script if each == "SCRIPT" else each for each in arguments]) == 2
    out, err = capfd.readouterr()
    assert words in err
    assert err.startswith("deadpool: ")
    assert (out, err.count("\n")) == ("", 1)
    assert not list(tmp_path.glob("deadpool/[!.]*"))  # no job's folder is left


def test_failure_rules_are_read_and_checked(tmp_path: Path) -> None:
    rules = Path(__file__).parents[4] / "supervisor" / "failures" / "failure_rules.toml"
    assert plan("--failure-rules", str(rules), "t.py").config.failure_rules == rules.read_text()


def test_a_topology_is_read_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "topology"
    file.write_text("# who hangs on which switch\nn1 pod1/rack3\n\nn2 rack4/  # and here\n")
    assert plan("--topology", str(file), "t.py").config.topology == (("n1", "pod1/rack3"), ("n2", "rack4"))
    assert plan("t.py").config.topology == ()
    bad = {
        b"n1\n": "line 1: n1: write NODE DOMAIN",
        b"n1 a\nn1 b\n": "line 2: n1 b: n1 was named before",
        b"n1 //\n": "line 1: n1 //: write NODE DOMAIN",
        b"\xff\xfe\n": "--topology .*: 'utf-8' codec",
    }
    for text, problem in bad.items():
        file.write_bytes(text)
        with pytest.raises(ConfigError, match=problem):
            plan("--topology", str(file), "t.py")


def test_every_field_has_an_option_or_says_why_not() -> None:
    """Each setting is of JobConfig or of LaunchOptions; all fields of JobConfig but ELSEWHERE have one."""
    of_settings = {setting.field for setting in settings.SETTINGS}
    job = {field.name for field in dataclasses.fields(JobConfig)}
    own = {field.name for field in dataclasses.fields(LaunchOptions)} - {"script", "arguments", "job", "given", "torchrun"}
    assert len(of_settings) == len(settings.SETTINGS)
    assert of_settings & job == job - ELSEWHERE
    assert of_settings - job == own
    assert not own & job


def test_help_shows_every_setting_under_its_heading(capfd: pytest.CaptureFixture[str]) -> None:
    assert launch.run(["--help"]) == 0
    text = capfd.readouterr().out
    assert [line[:-1] for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")] == [
        *settings.HEADINGS, "Other",
    ]  # fmt: skip
    ends = [*(text.index(f"\n{heading}:") for heading in settings.HEADINGS), text.index("\nOther:")]
    for (_, rows), begin, end in zip(settings.HEADINGS.items(), ends, ends[1:], strict=False):
        assert all(f"--{row.name}" in text[begin:end] for row in rows)
