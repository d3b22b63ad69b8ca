"""Job folders: private, locked by the launcher, found by the other commands, removed when their launcher was killed."""

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deadpool.cli.launcher import job_dirs
from deadpool.host.errors import ConfigError
from deadpool.proto.config import JobConfig, from_json
from deadpool.proto.job_dir import runtime_folder
from deadpool.proto.secret import read_private, write_private


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "deadpool"


def config(job_id: str = "j") -> JobConfig:
    return JobConfig(job_id=job_id, nnodes=1, nproc_per_node=1, command=("t.py",), python="python", log_dir="/l")


@contextmanager
def listening(job_id: str) -> Iterator[Path]:
    with job_dirs.job_folder(config(job_id)) as folder:
        write_private(folder / "endpoint.json", f'{{"job_id": "{job_id}", "endpoint": "127.0.0.1:1", "pid": 1}}')
        yield folder


def test_a_job_s_folder_is_private_and_gone_at_the_end(runtime: Path) -> None:
    with job_dirs.job_folder(config()) as folder:
        assert folder == runtime / "j"
        for path, mode in ((runtime, 0o700), (folder, 0o700), (folder / "token", 0o600), (folder / "job.json", 0o600)):
            assert stat.S_IMODE(path.stat().st_mode) == mode
        assert from_json((folder / "job.json").read_text()) == config()
        assert len(read_private(folder / "token")) == 64
    assert not folder.exists()


def test_two_jobs_of_one_name_are_refused() -> None:
    with job_dirs.job_folder(config()) as folder, pytest.raises(ConfigError, match="is running"), job_dirs.job_folder(config()):
        pass
    assert not folder.exists()


def test_the_folder_of_a_killed_launcher_is_removed_and_its_name_is_free(runtime: Path) -> None:
    for name in ("j", "k"):
        (runtime / name).mkdir(parents=True)
        (runtime / name / "lock").touch()
        (runtime / name / "endpoint.json").write_text("{}")
    runtime.chmod(0o700)
    assert job_dirs.running_jobs() == {}
    with job_dirs.job_folder(config("k")):
        assert not (runtime / "j").exists()
        assert not (runtime / "k" / "endpoint.json").exists()


def test_a_live_job_s_folder_stays(runtime: Path) -> None:
    with listening("a"), listening("b"):
        assert set(job_dirs.running_jobs()) == {"a", "b"}


def test_the_only_job_is_found_and_a_choice_is_asked_for(runtime: Path) -> None:
    with pytest.raises(ConfigError, match="no job is running"):
        job_dirs.find_job(None)
    with listening("a") as a:
        assert job_dirs.find_job(None) == job_dirs.find_job("a") == a
        assert job_dirs.read_endpoint(a) == job_dirs.SupervisorEndpoint("a", "127.0.0.1:1", 1)
        with pytest.raises(ConfigError, match="no job 'b' is running; running: a"):
            job_dirs.find_job("b")
        with listening("b"), pytest.raises(ConfigError, match="choose one with --job: a, b"):
            job_dirs.find_job(None)


def test_a_job_that_does_not_listen_yet_is_not_found() -> None:
    with job_dirs.job_folder(config()), pytest.raises(ConfigError, match="no job is running"):
        job_dirs.find_job(None)


def test_a_runtime_folder_that_others_can_enter_is_refused(runtime: Path) -> None:
    runtime.mkdir(mode=0o755)
    runtime.chmod(0o755)
    with pytest.raises(ConfigError, match="chmod 700"):
        runtime_folder()


def test_a_link_in_its_place_is_refused(runtime: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    runtime.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="chmod 700"):
        runtime_folder()


def test_the_lock_is_the_launcher_s_alone() -> None:
    """A child that inherited it would make a dead job look alive."""
    with job_dirs.job_folder(config()) as folder:
        held = [int(fd) for fd in os.listdir("/proc/self/fd") if _points_to(fd, folder / "lock")]
        assert held
        assert not any(os.get_inheritable(fd) for fd in held)
        with (folder / "lock").open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _points_to(fd: str, path: Path) -> bool:
    link = Path("/proc/self/fd", fd)
    return link.is_symlink() and os.readlink(link) == str(path)
