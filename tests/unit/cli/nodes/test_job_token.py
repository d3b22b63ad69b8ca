"""The secret of a user's jobs, and the token that it makes for each."""

import os
import stat
from pathlib import Path

import pytest

from deadpool.cli.nodes.job_token import shared_secret, token_of
from deadpool.host.errors import ConfigError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DEADPOOL_TOKEN", raising=False)
    return tmp_path


def test_the_token_is_of_the_secret_and_the_job() -> None:
    assert token_of("s", "a") == token_of("s", "a")
    assert len({token_of("s", "a"), token_of("s", "b"), token_of("t", "a")}) == 3


def test_the_secret_is_made_once_and_is_private(home: Path) -> None:
    first = shared_secret()
    path = home / ".deadpool" / "token"
    assert (first, len(first)) == (shared_secret(), 64)
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    assert os.listdir(path.parent) == ["token"]
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        shared_secret()


def test_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("DEADPOOL_TOKEN", "given")
    assert shared_secret() == "given"
    assert not (home / ".deadpool").exists()
