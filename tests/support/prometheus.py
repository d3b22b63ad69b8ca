"""Prometheus's programs, where they are installed: in PATH, or where .ci/run unpacks Debian's package."""

import shutil
from pathlib import Path

import pytest

UNPACKED = Path(__file__).resolve().parents[2] / "build" / "prometheus" / "usr" / "bin"


def program(name: str) -> str:
    """Returns the path of `prometheus` or `promtool`; the test is skipped where it is not installed."""
    found = shutil.which(name) or shutil.which(name, path=str(UNPACKED))
    if found is None:
        pytest.skip(f"{name} is not installed (Debian's package prometheus)")
    return found
