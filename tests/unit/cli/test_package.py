"""What is installed: the version, the files beside the modules, Slurm's scripts, and commands that start immediately."""

import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

import deadpool
from deadpool.cli import launch, main
from deadpool.cli.commands.slurm_scripts import SCRIPTS

ROOT = Path(__file__).parents[3]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
HEAVY = ("torch", "numpy", "grpc", "google.protobuf", "rich", "psutil", "prometheus_client", "deadpool.proto.messages")


def test_there_is_one_version(capfd: pytest.CaptureFixture[str]) -> None:
    assert deadpool.__version__ == PROJECT["project"]["version"]
    assert launch.run(["--version"]) == main.run(["--version"]) == 0
    assert capfd.readouterr().out.splitlines() == [
        f"{name}, version {deadpool.__version__}" for name in ("deadpool-launch", "deadpool")
    ]


def test_every_file_beside_the_modules_is_installed() -> None:
    listed = PROJECT["tool"]["setuptools"]["package-data"]
    package = Path(deadpool.__file__).parent
    for room in (each for each in package.iterdir() if each.is_dir() and each.name != "__pycache__"):
        for path in room.resolve().rglob("*"):
            if path.is_file() and path.suffix not in (".py", ".pyc"):
                name = ".".join(("deadpool", room.name, *path.parent.relative_to(room.resolve()).parts))
                assert any(fnmatch(path.name, pattern) for pattern in listed.get(name, ())), f"{name} lacks {path.name}"


def test_slurm_s_scripts_can_be_printed(capfd: pytest.CaptureFixture[str]) -> None:
    folder = ROOT / "deploy" / "slurm"
    assert sorted(SCRIPTS.values()) == sorted(path.name for path in folder.iterdir() if path.suffix in (".sbatch", ".sh"))
    for name, file in SCRIPTS.items():
        assert main.run(["slurm-script", name]) == 0
        assert capfd.readouterr().out == (folder / file).read_text()
    assert main.run(["slurm-script"]) == 0
    assert capfd.readouterr().out == (folder / "train.sbatch").read_text()


def test_what_a_command_shows_imports_nothing_that_only_others_need() -> None:
    program = "import sys, deadpool.cli.commands.tables, deadpool.cli.client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    unneeded = {
        "torch",
        "numpy",
        "psutil",
        "prometheus_client",
        "deadpool.cli.doctor.checks",
        "deadpool.supervisor",
        "deadpool.agent",
    }
    assert not unneeded & set(done.stdout.split())


@pytest.mark.parametrize("command", ["deadpool.cli.main", "deadpool.cli.launch"])
def test_help_imports_nothing_heavy(command: str) -> None:
    program = f"import sys, {command} as command; command.run(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert "Usage:" in done.stdout
    assert not set(HEAVY) & set(done.stderr.split())
