"""D2H on a real device: the bytes are those of the boundary, whatever the step behind the fence does to the tensors."""

import mmap

import pytest
import torch

from deadpool.trainer_hooks.protection.copy_engine import CudaEngine

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

ELEMENTS = 64 << 20


def test_the_copy_is_of_the_boundary_and_the_fence_holds_the_update_back() -> None:
    device = torch.device("cuda", 0)
    engine = CudaEngine(device)
    memory = torch.frombuffer(mmap.mmap(-1, 4 * ELEMENTS), dtype=torch.uint8)
    engine.register(memory)
    target = memory.view(torch.float32)
    source = torch.zeros(ELEMENTS, device=device)
    for value in range(1, 6):
        source.fill_(value)
        engine.at_boundary()
        ticket = engine.copy([source], [target])
        engine.fence()
        source.fill_(-1)  # what optimizer.step would do
        engine.landed(ticket)
        assert bool((target == value).all())


def test_the_copy_runs_beside_the_computation() -> None:
    device = torch.device("cuda", 0)
    engine = CudaEngine(device)
    memory = torch.frombuffer(mmap.mmap(-1, 4 * ELEMENTS), dtype=torch.uint8)
    engine.register(memory)
    source = torch.ones(ELEMENTS, device=device)
    matrix = torch.randn(4096, 4096, device=device)
    engine.at_boundary()
    for _ in range(20):
        matrix = matrix @ matrix / 64
    ticket = engine.copy([source], [memory.view(torch.float32)])
    engine.landed(ticket)  # would deadlock or wait for the products if the copy were on their stream
    torch.cuda.synchronize()
    assert bool((memory.view(torch.float32) == 1).all())


def test_a_tensor_is_compared_with_its_copy_bit_by_bit() -> None:
    device = torch.device("cuda", 0)
    engine = CudaEngine(device)
    source = torch.randn(ELEMENTS, device=device)
    source[5] = float("nan")
    copied = source.cpu()
    assert engine.same(source, copied)
    assert engine.same(torch.tensor(3.0), torch.tensor(3.0))  # a counter that lives on the host
    source.data[-1] += 1
    assert not engine.same(source, copied)
