"""How long a process has waited in its calls, also where they end on a device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fake_device import FakeDevice

from deadpool.trainer_hooks.groups.call_time import CallTime
from deadpool.trainer_hooks.groups.generation import Calls, Generation
from deadpool.trainer_hooks.groups.ledger import Ledger
from deadpool.trainer_hooks.groups.works import StreamWork


class OnDevice(dist.Work):
    """A collective that the device waits for, for so long."""

    def __init__(self, device: FakeDevice, wait_s: int) -> None:
        super().__init__()
        self._device, self._wait_s = device, wait_s

    def wait(self, timeout: Any = None) -> bool:
        self._device.spend(self._wait_s)
        return True

    def is_completed(self) -> bool:
        return False

    def get_future(self) -> "torch.futures.Future[Any]":
        future: torch.futures.Future[Any] = torch.futures.Future()
        self._device.spend(self._wait_s)
        future.set_result(None)
        return future


def total_s(times: CallTime) -> float:
    return times.total_ns() / 1e9


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("end", [lambda work: work.wait(), lambda work: work.get_future()], ids=["waited for", "by its future"])
def test_what_a_stream_waits_for_counts_and_what_it_computes_does_not(end: Callable[[StreamWork], Any], seed: int) -> None:
    device = FakeDevice(seed)
    times = CallTime(device)
    generation = Generation(1, lambda number, error: None, call_time=times)
    calls = Calls(None, 0, (0, 2), times, Ledger())
    for step in range(5):
        device.spend(3)
        calls.enter(b"allreduce")
        end(StreamWork(generation, calls, OnDevice(device, wait_s=step), "allreduce", ([torch.ones(1)],)))
        device.spend(2)
    device.mark().wait()
    assert times.known
    assert total_s(times) == pytest.approx(0 + 1 + 2 + 3 + 4, abs=0.05)
    assert total_s(times) == pytest.approx(10, abs=0.05)


def test_calls_that_overlap_count_once_in_whatever_order_they_end() -> None:
    device = FakeDevice(0)
    times = CallTime(device)
    first = times.mark()
    device.spend(2)
    second = times.mark()
    device.spend(3)
    times.waited(second)
    device.spend(1)
    times.waited(first)
    device.mark().wait()
    assert total_s(times) == 6
    device.spend(10)
    third = times.mark()
    device.spend(1)
    times.waited(third)
    device.mark().wait()
    assert total_s(times) == 7


def test_nobody_waits_for_the_device_to_know_it() -> None:
    device = FakeDevice(0)
    times = CallTime(device)
    began = times.mark()
    collective = device.collective()
    times.waited(began)
    assert total_s(times) == 0
    device.end(collective)
    device.mark().wait()


def test_without_a_device_it_is_not_known() -> None:
    times = CallTime()
    assert times.known
    times.waited(times.mark())
    assert not times.known
