"""Fixtures for all tests: every shell and e2e test ends its processes and leaves /dev/shm as it was."""

import contextlib
import fcntl
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from launching import Launcher, launching, tagged_pids, until
from warm_start import TEST_TAG

_SHM = Path("/dev/shm")
_GONE_WITHIN_S = 60.0
_E2E_TIMEOUT_S = 180
_numbers = itertools.count()

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])  # no test is timed
settings.load_profile("patient")
os.environ.pop("PYTHONSAFEPATH", None)  # is for the tests' own imports; scripts under test import what lies beside them


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests with real processes are e2e, whole jobs have vaults and get more time: the machine may be busy.

    Those marked `long` or `matrix` run when named, those under tests/slurm also with -m slurm.
    """
    for item in items:
        if {"shell", "matrix"} & set(item.path.parts):
            item.add_marker(pytest.mark.e2e)
        if item.get_closest_marker("e2e") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_E2E_TIMEOUT_S))
        if "e2e" in item.path.parts or ("shell" in item.path.parts and item.path.name.startswith("test_agent_")):
            item.add_marker(pytest.mark.vault)
        if "slurm" in item.path.parts:
            item.add_marker(pytest.mark.slurm)
    named = set(config.option.markexpr.split())
    unnamed = [marker for marker, names in (("long", {"long", "slurm"}), ("matrix", {"matrix"})) if not names & named]
    left_out = [item for item in items if any(item.get_closest_marker(marker) for marker in unnamed)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def leaves_nothing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test with real processes when one of them is left, and one with vaults when a file in /dev/shm is.

    Processes are known by a variable in the environment that they inherit; files of a job that runs beside (its vault is
    locked) are not this test's.
    """
    if not {"shell", "e2e", "slurm"} & set(request.path.parts):
        yield
        return
    tag = f"{os.getpid()}-{next(_numbers)}"
    monkeypatch.setenv(TEST_TAG, tag)
    before = set(_SHM.iterdir())
    folder = request.node.funcargs.get("tmp_path")
    yield
    try:
        until(lambda: not tagged_pids(f"{TEST_TAG}={tag}", folder), _GONE_WITHIN_S, "all processes of the test are gone")
    finally:
        left = {pid: _command_line(pid) for pid in tagged_pids(f"{TEST_TAG}={tag}", folder)}
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert not left, f"processes left: {left}"
    if request.node.get_closest_marker("vault"):
        until(lambda: not _left_in_shm(before), _GONE_WITHIN_S, f"/dev/shm is as it was; there now: {_left_in_shm(before)}")


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """Starts real jobs; those that still run at the end of the test are stopped."""
    with launching(tmp_path) as launcher:
        yield launcher


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard() -> None:
    """A shell starts background commands with SIGINT ignored, and children inherit that: jobs under test would not hear it."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _left_in_shm(before: set[Path]) -> set[Path]:
    """multiprocessing's semaphores are torchrun's, in a test that runs beside; DeadPool has none. So is what a living process has
    mapped, as an MPI library's file: of this test none is left.
    """
    new = (path for path in set(_SHM.iterdir()) - before if not path.name.startswith("sem.mp-"))
    return {path for path in new if not _is_locked(path / "lock") and not _is_mapped(path)}


def _is_mapped(path: Path) -> bool:
    for maps in Path("/proc").glob("[0-9]*/maps") if path.is_file() else ():
        with contextlib.suppress(OSError):  # its process has ended meanwhile
            if str(path) in maps.read_text():
                return True
    return False


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (FileNotFoundError, NotADirectoryError):
        return False
    return False


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:  # it has ended meanwhile
        return ""
