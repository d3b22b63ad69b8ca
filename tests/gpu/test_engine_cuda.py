"""D2H on a real device: the bytes are those of the boundary, whatever the step behind the fence does to the tensors."""

import mmap

import pytest
import torch

from deadpool.trainer_hooks.device import CudaDevice
from deadpool.trainer_hooks.protection.device_engine import DeviceEngine

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

ELEMENTS = 64 << 20


def test_the_copy_is_of_the_boundary_and_the_fence_holds_the_update_back() -> None:
    device = torch.device("cuda", 0)
    engine = DeviceEngine(CudaDevice(device))
    memory = torch.frombuffer(mmap.mmap(-1, 4 * ELEMENTS), dtype=torch.uint8)
    engine.register(memory)
    target = memory.view(torch.float32)
    source = torch.zeros(ELEMENTS, device=device)
    for value in range(1, 6):
        source.fill_(value)
        ticket = engine.copy([source], [target], engine.at_boundary())
        engine.fence()
        source.fill_(-1)  # what optimizer.step would do
        engine.landed(ticket)
        assert bool((target == value).all())


def test_the_copy_runs_beside_the_computation() -> None:
    device = torch.device("cuda", 0)
    engine = DeviceEngine(CudaDevice(device))
    memory = torch.frombuffer(mmap.mmap(-1, 4 * ELEMENTS), dtype=torch.uint8)
    engine.register(memory)
    source = torch.ones(ELEMENTS, device=device)
    matrix = torch.randn(4096, 4096, device=device)
    point = engine.at_boundary()
    for _ in range(20):
        matrix = matrix @ matrix / 64
    ticket = engine.copy([source], [memory.view(torch.float32)], point)
    engine.landed(ticket)  # would deadlock or wait for the products if the copy were on their stream
    torch.cuda.synchronize()
    assert bool((memory.view(torch.float32) == 1).all())


def test_a_tensor_is_compared_with_its_copy_bit_by_bit() -> None:
    device = torch.device("cuda", 0)
    engine = DeviceEngine(CudaDevice(device))
    source = torch.randn(ELEMENTS, device=device)
    source[5] = float("nan")
    copied = source.cpu()
    assert engine.same(source, copied)
    assert engine.same(torch.tensor(3.0), torch.tensor(3.0))  # a counter that lives on the host
    source.data[-1] += 1
    assert not engine.same(source, copied)


def test_neighbours_leave_the_device_together() -> None:
    device = torch.device("cuda", 0)
    engine = DeviceEngine(CudaDevice(device))
    memory = torch.frombuffer(mmap.mmap(-1, 64 * 1000), dtype=torch.uint8)
    engine.register(memory)
    sources = [torch.full((index % 16 + 1,), index, dtype=torch.float32, device=device) for index in range(1000)]
    targets = [memory[64 * index : 64 * index + source.nbytes].view(torch.float32) for index, source in enumerate(sources)]
    engine.landed(engine.copy(sources, targets, engine.at_boundary()))
    assert all(bool((target == index).all()) for index, target in enumerate(targets))


def test_memory_that_is_mapped_where_other_memory_was_is_pinned_itself() -> None:
    device = CudaDevice(torch.device("cuda", 0))
    for _ in range(20):
        memory = torch.frombuffer(mmap.mmap(-1, 1 << 20), dtype=torch.uint8)
        device.pin(memory)
        assert memory.is_pinned()
        del memory
