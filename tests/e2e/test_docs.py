"""What the pages say is done: the tutorial's scripts are drilled, a running job is given the commands that the README names."""

import re
import shlex
from pathlib import Path

import pytest
from launching import DRILL, Launcher, until
from training import ROOT, SMALL

pytestmark = pytest.mark.e2e

TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
SCRIPTS = {name: text for text, name in re.findall(r"^```python\n(# (\w+\.py)\n.*?)^```$", TUTORIAL, re.MULTILINE | re.DOTALL)}
DRILLS = {line.split()[-1]: shlex.split(line)[2:-1] for line in re.findall(r"^\$ (deadpool drill .*)$", TUTORIAL, re.MULTILINE)}
WHILE_IT_RUNS = re.search(r"^While it runs.*?^```console\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def test_each_script_of_the_tutorial_has_its_drill() -> None:
    assert len(SCRIPTS) >= 4
    assert DRILLS.keys() == SCRIPTS.keys()


@pytest.mark.parametrize("name", [name if name == "ddp.py" else pytest.param(name, marks=pytest.mark.long) for name in SCRIPTS])
def test_a_script_of_the_tutorial_recovers(launcher: Launcher, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(SCRIPTS[name])
    drilled = launcher.start(*DRILLS[name], str(tmp_path / name), program=DRILL).wait(150)
    assert drilled.exit_code == 0, drilled.out + drilled.err
    assert "this script recovers by every way there is." in drilled.out


@pytest.mark.long
def test_the_commands_for_a_running_job(launcher: Launcher) -> None:
    """In the README's order; the last one stops the job, and those that follow it end with it."""
    assert WHILE_IT_RUNS is not None
    lines = [line.split("  #")[0].strip() for line in WHILE_IT_RUNS[1].splitlines()]
    assert lines[-1] == "deadpool stop"
    script = (str(ROOT / "examples" / "train_gpt.py"), *SMALL, "--steps", "100000")
    job = launcher.start("--nnodes", "2", "--nproc-per-node", "2", "--spares", "1", "--dashboard", *script)
    until(lambda: any(event["event"] == "started" for event in job.events()), 60, "the job trains")
    following = []
    for line in lines:
        words = shlex.split(line)[1:]
        if "--follow" in words or "-f" in words:
            following.append(job.ask_on(*words))
            continue
        answer = job.ask(*words)
        expected = (0, 1) if words[0] == "doctor" else (0,)  # 1: it has found something on this machine
        assert answer.returncode in expected, f"{line}\n{answer.stdout}{answer.stderr}"
    for each in following:
        assert each.wait(100) == 0
    assert job.wait().exit_code == 143
