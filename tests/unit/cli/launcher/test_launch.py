"""deadpool-launch's command line: bad input gets one clear line and exit code 2; options and JobConfig are one list."""

import dataclasses
from pathlib import Path

import click
import pytest

from deadpool.cli import launch
from deadpool.cli.options import settings
from deadpool.proto.config import Entry, Injection, JobConfig, OnExhausted

# Fields that no option sets: from the rest of the command line or the environment, or not worth an option so far.
ELSEWHERE = {"command", "entry", "python", "standalone", "failure_rules", "netns", "injections", "min_nnodes", "run_id",
    "together",
}  # fmt: skip
NO_OPTION = {
    "broken_collective_grace_s", "quiesce_timeout_s",
    "join_timeout_s", "reform_timeout_s", "restore_timeout_s",
}  # fmt: skip


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
        (["-m", "--no-python", "SCRIPT"], "choose one"),
        (["--nproc-per-node", "0", "SCRIPT"], "'--nproc-per-node': 0 is too small"),
        (["--nproc_per_node", "tpu", "SCRIPT"], "'tpu' is not a number, nor one of auto, cpu, gpu, xpu"),
        (["--nnodes", "0", "SCRIPT"], "'--nnodes': 0 is too small"),
        (["--nnodes", "4:1", "SCRIPT"], "MAX is less than MIN"),
        (["--nnodes", "1:", "SCRIPT"], "is not a number, nor MIN:MAX"),
        (["-r", "7", "SCRIPT"], "--redirects 7: write 0, 1, 2 or 3"),
        (["--local-ranks-filter", "a", "SCRIPT"], "write local ranks as 0,1,2"),
        (["--signals-to-handle", "SIGTERM,SIGKILL", "SCRIPT"], "'SIGKILL' is not a signal that can be handled"),
        (["--logs-specs", "mine", "SCRIPT"], "--logs-specs mine: torchrun's plugins do not run here"),
        (["--node-rank", "1", "SCRIPT"], "is --nnodes missing?"),
        (["--spares", "-1", "SCRIPT"], "'--spares': -1 is not in the range"),
        (["--inject", "kill-cat:0@3", "SCRIPT"], "unknown kind 'kill-cat'"),
        (["--inject", "kill-rank:0", "SCRIPT"], "expected KIND:TARGET@STEP"),
        (["--nnodes", "2", "--nproc-per-node", "2", "--inject", "kill-rank:4@3", "SCRIPT"], "no rank 4 (ranks are 0..3)"),
        (["--nnodes", "2", "--spares", "1", "--inject", "kill-node:3@3", "SCRIPT"], "no node 3 (nodes are 0..2)"),
        (["--heartbeat-timeout", "0.5", "--heartbeat-interval", "1", "SCRIPT"], "must be longer than --heartbeat-interval"),
        (["--failure-rules", "no.toml", "SCRIPT"], "'--failure-rules': File 'no.toml' does not exist"),
        (["--failure-rules", "SCRIPT", "SCRIPT"], "not TOML"),
        (["--job-id", "../up", "SCRIPT"], "--job-id ../up: use letters"),
        (["--job-id", "x" * 48, "--nnodes", "9" * 40, "SCRIPT"], "too long for a socket's path"),
        (["--nnodes", "2", "--rdzv-endpoint", "host:0", "SCRIPT"], "write HOST:PORT"),
        (["--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:29400", "--port", "7", "SCRIPT"], "the supervisor listens where"),
        (["--hosts", "a,b", "--nnodes", "2", "--spares", "1", "SCRIPT"], "2 hosts are too few"),
        (["--hosts", "a,b", "--journal", "/tmp/j", "SCRIPT"], "start the job on each machine"),
        (["--hosts", "a", "--standalone", "SCRIPT"], "goes neither with --standalone"),
        (["--summary-json", "/no/such/folder/s.json", "SCRIPT"], "cannot write to /no/such/folder"),
        (["--log-dir", "/dev/null/logs", "SCRIPT"], "--log-dir /dev/null/logs"),
        (["--slurm", "SCRIPT"], "no Slurm allocation here"),
        (["--requeue", "SCRIPT"], "no Slurm allocation here"),
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


def test_an_interpreter_that_is_none(script: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PYTHON_EXEC", "/no/python")
    assert launch.run([script]) == 2
    assert "PYTHON_EXEC=/no/python" in capfd.readouterr().err


def parse(*arguments: str) -> JobConfig:
    context = launch.launch.make_context("deadpool-launch", list(arguments))
    parameters = dict(context.params)
    standalone = parameters.pop("standalone")
    for name in launch.OF_THE_LAUNCHER:
        del parameters[name]
    return launch.job_config(parameters, standalone=standalone)[0]


def test_defaults_are_those_of_jobconfig(script: str) -> None:
    config = parse(script)
    assert config == JobConfig(
        job_id=config.job_id,
        nnodes=1,
        min_nnodes=1,
        nproc_per_node=1,
        command=(script,),
        python=config.python,
        log_dir=config.log_dir,
    )
    assert config.job_id.startswith("script-")
    assert Path(config.log_dir) == Path.cwd() / "logs" / config.job_id


def test_every_field_has_an_option_or_says_why_not() -> None:
    fields = {field.name for field in dataclasses.fields(JobConfig)}
    assert {setting.field for setting in settings.SETTINGS} | ELSEWHERE | NO_OPTION == fields
    assert not {setting.field for setting in settings.SETTINGS} & (ELSEWHERE | NO_OPTION)


def test_the_scripts_own_options_are_left_alone(script: str) -> None:
    config = parse("--nnodes", "2", script, "--nnodes", "7", "--spares=3", "-m", "--", "x")
    assert config.nnodes == 2
    assert config.command == (script, "--nnodes", "7", "--spares=3", "-m", "--", "x")


def test_both_spellings_and_torchruns_variables(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_MAX_RESTARTS", "4")
    config = parse("--nproc_per_node=2", "--heartbeat_timeout", "9", "--nnodes", "3:3", "--on_exhausted", "abort", script)
    assert (config.nnodes, config.nproc_per_node, config.max_restarts) == (3, 2, 4)
    assert (config.heartbeat_timeout_s, config.on_exhausted) == (9.0, OnExhausted.ABORT)


def test_injections_are_numbered(script: str) -> None:
    config = parse("--nnodes", "2", "--inject", "kill-node:1@15", "--inject", "kill-rank:0@20", script)
    assert config.injections == (
        Injection(injection_id=1, kind="kill-node", target=1, step=15),
        Injection(injection_id=2, kind="kill-rank", target=0, step=20),
    )


def test_modules_and_programs(script: str) -> None:
    assert (parse("-m", "json.tool", "x").command, parse("-m", "json.tool").entry) == (("json.tool", "x"), Entry.MODULE)
    program = parse("--no-python", "sh", "-c", "true")
    assert (program.command, program.entry) == (("sh", "-c", "true"), Entry.PROGRAM)


def test_standalone_overrides_torchruns_rendezvous_options(script: str) -> None:
    assert parse("--standalone", "--rdzv_endpoint", "host:1", script).standalone


def test_an_option_that_fits_no_type_is_click_s_error(script: str) -> None:
    with pytest.raises(click.BadParameter):
        parse("--nnodes", "two", script)


ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_CPUS_PER_NODE": "2(x3)"}


@pytest.mark.parametrize(
    ("arguments", "changed", "words"),
    [
        (["--spares", "3", "SCRIPT"], {}, "--spares 3: Slurm job 7 has 3 nodes, and at least one must train"),
        (["--nnodes", "3", "--spares", "1", "SCRIPT"], {}, "4 nodes, but Slurm job 7 has 3"),
        (["--slurm", "--nnodes", "4", "SCRIPT"], {}, "--nnodes 4: 4 nodes, but Slurm job 7 has 3"),
        (["SCRIPT"], {"SLURM_JOB_CPUS_PER_NODE": "4(x2),2"}, "different numbers of CPUs"),
        (["SCRIPT"], {"SLURM_HET_SIZE": "2"}, "heterogeneous"),
        (["SCRIPT"], {"SLURM_STEP_NUM_TASKS": "3"}, "srun has started deadpool-launch 3 times"),
        (["SCRIPT"], {"PATH": "/no/such/folder"}, "srun is not in PATH"),
        (["--netns", "SCRIPT"], {}, "--netns: the nodes of a Slurm allocation"),
        (["--gpus-per-node", "8", "SCRIPT"], {}, "--gpus-per-node is an option of sbatch and srun"),
    ],
)
def test_allocations_that_do_not_fit(
    script: str,
    arguments: list[str],
    changed: dict[str, str],
    words: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text("#!/bin/sh\nexit 1\n")
    srun.chmod(0o755)
    for name, value in ({"PATH": str(srun.parent)} | ALLOCATION | changed).items():
        monkeypatch.setenv(name, value)
    assert launch.run([script if each == "SCRIPT" else each for each in arguments]) == 2
    out, err = capfd.readouterr()
    assert words in err
    assert (out, err.count("\n")) == ("", 1)
    assert not list(tmp_path.glob("deadpool/[!.]*"))
