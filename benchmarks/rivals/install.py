"""Installs a rival into a virtual environment of its own: their versions of torch and its relatives do not fit together."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_TORCH = os.environ.get("TORCH", "torch==2.13.0")  # as in the Makefile
PACKAGES = {
    "torchft": ("torchft-nightly==2026.10.26",),
    "nvrx": ("nvidia-resiliency-ext==0.4.1",),
}


def install(rival: str, venv: Path, say: Callable[[str], None]) -> None:
    """Makes the environment unless it is complete already. train_gpt.py needs DeadPool's own dependencies there, too."""
    complete = venv / "complete"
    if complete.exists():
        return
    say(f"installing {rival} into {venv}")
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    ours = [name for name in project["dependencies"] if not name.startswith("torch")]
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in ([sys.executable, "-m", "venv", str(venv)], [*pip, _TORCH], [*pip, _TORCH, *ours, *PACKAGES[rival]]):
        subprocess.run(command, check=True, stdout=sys.stderr)
    complete.touch()
