"""HOST:PORT as people write it, and as it is written for them."""

import pytest

from deadpool.host.addresses import join_host_port, split_host_port
from deadpool.host.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("trainer1:2222", ("trainer1", 2222)),
        ("trainer1", ("trainer1", 29400)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[fd00::1]:2222", ("fd00::1", 2222)),
        ("fd00::1", ("fd00::1", 29400)),
    ],
)
def test_endpoints(text: str, expected: tuple[str, int]) -> None:
    assert split_host_port(text, default_port=29400, option="--rdzv-endpoint") == expected


@pytest.mark.parametrize("text", ["trainer1:0", "trainer1:x", ":2222", "trainer1:70000", ""])
def test_what_is_no_endpoint(text: str) -> None:
    with pytest.raises(ConfigError, match="write HOST:PORT"):
        split_host_port(text, default_port=29400, option="--rdzv-endpoint")


@pytest.mark.parametrize("host", ["trainer1", "10.0.0.1", "fd00::1"])
def test_what_is_joined_is_split_again(host: str) -> None:
    assert split_host_port(join_host_port(host, 2222)) == (host, 2222)


def test_an_address_without_a_port_is_none_where_there_is_no_default() -> None:
    with pytest.raises(ConfigError, match="trainer1: write HOST:PORT"):
        split_host_port("trainer1")
