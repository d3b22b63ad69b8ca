"""The store that c10d keeps: passes calls on to the generation's client, and lets nobody wait where there is none."""

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from deadpool.trainer_hooks.groups.stores import GenerationStore

MINUTE = timedelta(seconds=60)


@pytest.fixture
def server() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_alone_nobody_waits() -> None:
    store = GenerationStore()
    below = PrefixStore("p", store)  # through C++, as c10d does
    below.wait(["never set"], MINUTE)
    assert below.get("never set") == b""
    assert below.add("count", 2) == 2
    assert below.add("count", 3) == 5
    below.set("key", "value")
    assert below.get("key") == b"value"
    assert below.check(["whatever"])
    assert below.delete_key("key")


def test_calls_reach_the_client_and_the_next_one_after_a_change(server: TCPStore) -> None:
    store = GenerationStore()
    below = PrefixStore("p", store)
    for generation in range(2):
        client = PrefixStore(f"g{generation}", server)
        store.attach(client, lambda: False)
        below.set("key", f"in {generation}")
        assert server.get(f"g{generation}/p/key") == f"in {generation}".encode()
        assert below.compare_set("key", f"in {generation}", "new") == b"new"
        assert below.multi_get(["key"]) == [b"new"]


def test_a_wait_ends_with_its_generation(server: TCPStore) -> None:
    store = GenerationStore()
    broken = threading.Event()
    store.attach(server, broken.is_set)
    got: list[bytes] = []
    waiter = threading.Thread(target=lambda: got.append(store.get("never set")))
    waiter.start()
    broken.set()
    waiter.join(30)
    assert got == [b""]


def test_a_wait_has_its_own_timeout(server: TCPStore) -> None:
    store = GenerationStore()
    store.attach(server, lambda: False)
    with pytest.raises(dist.DistStoreError):
        store.wait(["never set"], timedelta(milliseconds=300))
