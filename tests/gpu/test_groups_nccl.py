"""Groups over NCCL, one rank per device. Ready to run where there are GPUs; not tried yet."""

import multiprocessing
import os
import threading
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import TCPStore

from deadpool.trainer_hooks.groups.registry import Groups

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
RESULT_TIMEOUT_S = 55


def _train(rank: int, size: int, port: int, breaks: bool, results: Connection) -> None:
    """Six steps; every rank breaks in the backward of step 3 and tries it again in generation 2."""
    torch.cuda.set_device(rank)
    store = TCPStore("127.0.0.1", port, is_master=False)
    groups = Groups(record=None, host="127.0.0.1", on_broken=lambda _generation, _error: None)
    groups.init_default(rank=rank, world_size=size, generation=1, store=store)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda(rank))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses: list[float] = []
    broken_once = not breaks

    def break_here(*_: Any) -> None:
        nonlocal broken_once
        if len(losses) == 3 and not broken_once:
            broken_once = True
            groups.break_generation(1, "the test")

    model.module[0].register_full_backward_hook(break_here)
    while len(losses) < 6:
        batch = torch.randn(8, 64, generator=torch.Generator().manual_seed(len(losses) * 100 + rank)).cuda(rank)
        loss = (model(batch) - batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        if groups.broken:
            torch.cuda.synchronize()
            groups.reform(generation=2, store=store, timeout_s=30, cancelled=threading.Event())
            continue
        optimizer.step()
        losses.append(loss.item())
    results.send(losses)
    groups.close()
    os._exit(0)


def _run(breaks: bool) -> list[list[float]]:
    context = multiprocessing.get_context("spawn")
    size = torch.cuda.device_count()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipes = [context.Pipe() for _ in range(size)]
    ranks = [
        context.Process(target=_train, args=(rank, size, store.port, breaks, at_rank)) for rank, (_, at_rank) in enumerate(pipes)
    ]
    for process in ranks:
        process.start()
    try:
        for here, _ in pipes:
            assert here.poll(RESULT_TIMEOUT_S), "a rank did not answer"
        return [here.recv() for here, _ in pipes]
    finally:
        for process in ranks:
            process.kill()
            process.join()


@pytest.mark.timeout(180)
def test_break_in_backward_goes_on_with_the_same_losses() -> None:
    assert _run(breaks=True) == _run(breaks=False)
