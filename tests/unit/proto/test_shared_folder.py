"""What a node on another machine finds in the folder that a job's machines share."""

import os
import stat
from pathlib import Path

import pytest

from deadpool.host.errors import ConfigError
from deadpool.proto.secret import write_private
from deadpool.proto.shared_folder import read_shared, share, stand_where_the_launcher_does, unshare


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job's folder, shared by a launcher that stands in `work`."""
    for name in ("job", "shared", "work"):
        (tmp_path / name).mkdir()
    write_private(tmp_path / "job" / "token", "secret")
    write_private(tmp_path / "job" / "job.json", '{"job_id": "j"}')
    monkeypatch.chdir(tmp_path / "work")
    share(tmp_path / "job", tmp_path / "shared")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "shared"


def test_token_and_job_are_there_until_the_end(shared: Path) -> None:
    assert read_shared(shared, 0.0) == ("secret", '{"job_id": "j"}')
    assert stat.S_IMODE((shared / "token").stat().st_mode) == 0o600
    unshare(shared)
    unshare(shared)
    assert not list(shared.iterdir())


def test_a_node_stands_where_the_launcher_does(shared: Path, tmp_path: Path) -> None:
    stand_where_the_launcher_does(shared)
    assert Path.cwd() == tmp_path / "work"
    os.chdir(tmp_path)
    (tmp_path / "work").rmdir()
    with pytest.raises(ConfigError, match="work: the job was started there, and this machine cannot go there"):
        stand_where_the_launcher_does(shared)


def test_no_job_and_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no job runs from there"):
        read_shared(tmp_path, 0.0)
    with pytest.raises(ConfigError, match="no such folder on this machine"):
        read_shared(tmp_path / "none", 0.0)
