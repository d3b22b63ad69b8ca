"""Where machines meet: the endpoint as it is written, whose it is, and the secret that makes the token."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from deadpool.cli.nodes import rendezvous
from deadpool.cli.nodes.rendezvous import meeting_of, shared_secret, token_of
from deadpool.host.errors import ConfigError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DEADPOOL_TOKEN", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "endpoint", "here", "index"),
    [
        ({"rdzv-endpoint": "127.0.0.1:29411"}, "127.0.0.1:29411", True, 0),
        ({"rdzv-endpoint": "localhost"}, "127.0.0.1:29400", True, 0),
        ({"rdzv-endpoint": "192.0.2.7:29411"}, "192.0.2.7:29411", False, -1),
        ({"rdzv-endpoint": "[2001:db8::7]:29411"}, "[2001:db8::7]:29411", False, -1),
        ({"master-addr": "192.0.2.7", "node-rank": 2}, "192.0.2.7:29500", False, 2),
        ({"node-rank": 1}, "127.0.0.1:29500", True, 1),
        ({"master-addr": "127.0.0.1", "master-port": 5000, "node-rank": 0}, "127.0.0.1:5000", True, 0),
    ],
)
def test_whose_endpoint_it_is(given: dict[str, Any], endpoint: str, here: bool, index: int) -> None:
    found = meeting_of(given, None)
    assert found is not None
    assert (found.endpoint, found.here, found.index) == (endpoint, here, index)


def test_nothing_says_so() -> None:
    assert meeting_of({"rdzv-id": "7", "master-port": 29500}, None) is None


def test_bad_endpoints_are_named() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.invalid does not resolve"):
        meeting_of({"rdzv-endpoint": "nowhere.invalid:29400"}, None)
    with pytest.raises(ConfigError, match="join_timeout is a number"):
        meeting_of({"rdzv-endpoint": "localhost", "rdzv-conf": "join_timeout=soon"}, None)
    with pytest.raises(ConfigError, match="no such interface"):
        meeting_of({"rdzv-endpoint": "localhost"}, "nowhere7")


def test_the_interface_chooses_the_address() -> None:
    found = meeting_of({"rdzv-endpoint": "127.0.0.1:29400", "rdzv-conf": "join_timeout=3"}, "lo")
    assert found is not None
    assert (found.own_host("lo"), found.join_timeout_s) == ("127.0.0.1", 3.0)


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


def test_names_of_nodes_differ() -> None:
    assert rendezvous.node_name() != rendezvous.node_name()
