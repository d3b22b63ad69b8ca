"""Frameworks that own the loop: their examples go through failures as if there were none, and train as without us."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from example_jobs import ONE_THREAD
from launching import DRILL, Job, Launcher, launching, until
from training import ROOT, SLOWLY, Training, assert_same, finished, hurry

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(300)]
FRAMEWORKS = ("transformers", "lightning")
Unbroken = Callable[[str], Training]
FILES = ("--loss-log", "losses", "--digest", "digests", "--output", "made")


def start(launcher: Launcher, framework: str, *options: str, arguments: Sequence[str] = (), slowly: bool = False) -> Job:
    """`slowly`: each step takes a second more (slowly.py), until hurry()."""
    pytest.importorskip(framework)
    nodes = ("--standalone", "--nnodes", "2", "--spares", "1", "--summary-json", "summary.json")
    script = (*((SLOWLY,) if slowly else ()), str(ROOT / "examples" / f"train_{framework}.py"))
    return launcher.start(*nodes, *options, *script, *FILES, *arguments, environment=ONE_THREAD)


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Unbroken:
    """Returns the unbroken run of a framework's example, made once."""
    made: dict[str, Training] = {}

    def run(framework: str) -> Training:
        if framework not in made:
            with launching(tmp_path_factory.mktemp("straight")) as launcher:
                made[framework] = finished(start(launcher, framework))
        return made[framework]

    return run


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_rank_and_a_node_are_killed(launcher: Launcher, straight: Unbroken, framework: str) -> None:
    broken = finished(start(launcher, framework, "--inject", "kill-rank:0@5", "--inject", "kill-node:1@14"))
    broken.assert_same_as(straight(framework))
    assert [recovery["class"] for recovery in broken.summary["recoveries"]] == ["transient", "permanent"]
    assert broken.summary["committed_steps_lost"] == 0


UNHOOKED = {
    "from deadpool.integrations.transformers import ProtectedTrainer as Trainer": "from transformers import Trainer",
    "from deadpool.integrations.lightning import DeadpoolCallback": "",
    "DeadpoolCallback(), ": "",
    "import deadpool\n": "",
    "deadpool.join()\n": "\n",
}


def unhooked(framework: str, folder: Path) -> Path:
    """Writes the example as it would be without deadpool; returns where."""
    text = (ROOT / "examples" / f"train_{framework}.py").read_text()
    code = text[text.index('"""', 3) + 3 :]
    for ours, theirs in UNHOOKED.items():
        code = code.replace(ours, theirs)
    assert "deadpool" not in code.lower()
    script = folder / f"unhooked_{framework}.py"
    script.write_text(f"import sys\nsys.path.append({str(ROOT / 'examples')!r})\n{code}")
    return script


@pytest.mark.parametrize("launched", ["torchrun", "deadpool-launch"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_without_hooks_it_trains_the_same(
    launcher: Launcher, straight: Unbroken, framework: str, launched: str, tmp_path: Path
) -> None:
    pytest.importorskip(framework)
    words, folder = [str(unhooked(framework, tmp_path)), *FILES], tmp_path
    if launched == "torchrun":
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, timeout=100, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        job = launcher.start("--standalone", "--nnodes", "2", *words, environment=ONE_THREAD)
        assert job.wait().exit_code == 0, job.err
        folder = job.folder
    unbroken = straight(framework)
    assert_same(folder / "losses", unbroken.losses)
    assert_same(folder / "digests", unbroken.digests)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_node_is_drained(launcher: Launcher, framework: str) -> None:
    """The spare builds first, while everybody else trains: there must be steps enough."""
    longer = ("--epochs", "12", "--patience", "1000")
    unbroken = finished(start(launcher, framework, arguments=longer))
    job = start(launcher, framework, arguments=longer, slowly=True)
    until(lambda: lines(job.folder / "losses") >= 4, 60, "some steps are done")
    drained = job.ask("drain", "node1")
    assert drained.returncode == 0, drained.stderr
    hurry(job)
    moved = finished(job)
    moved.assert_same_as(unbroken)
    assert [recovery["class"] for recovery in moved.summary["recoveries"]] == ["planned"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_it_resumes_from_a_persistent_checkpoint(launcher: Launcher, straight: Unbroken, framework: str) -> None:
    disk = ("--checkpoint-dir", str(launcher.folder / "disk"), "--checkpoint-every", "8")
    first = start(launcher, framework, *disk, "--spares", "0", "--on-exhausted", "abort", "--inject", "kill-node:1@20")
    assert first.wait().exit_code == 1
    second = finished(start(launcher, framework, *disk, "--resume", "auto"))
    (second.losses).write_text((first.folder / "losses").read_text() + second.losses.read_text())
    second.assert_same_as(straight(framework))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_drill_finds_nothing(launcher: Launcher, framework: str) -> None:
    pytest.importorskip(framework)
    boundaries = ("--drill-at", "5", "--drill-at", "10", "--drill-at", "14", "--drill-at", "15")
    script = (str(ROOT / "examples" / f"train_{framework}.py"), "--output", "made")
    drilled = launcher.start("--json", *boundaries, *script, program=DRILL, environment=ONE_THREAD).wait(150)
    assert drilled.exit_code == 0, drilled.out + drilled.err
    assert {way["outcome"] for way in json.loads(drilled.out)["ways"]} == {"same"}
