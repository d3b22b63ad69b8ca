"""One rank of the group tests: trains a small model, discards broken steps, goes back to the step that the driver names.

A guard in miniature. Everything between it and the driver goes over a TCPStore ("control"): reports are `set`, orders are
waited for.
"""

import faulthandler
import json
import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # what torch would import in the first step, in every rank
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from deadpool.host.errors import UnavailableError
from deadpool.trainer_hooks.groups.registry import Groups

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # torch's own import uses what torch deprecates
    from torch.distributed.optim import ZeroRedundancyOptimizer

WORLD = 4
REHEARSALS = 2
_KEPT_SNAPSHOTS = 4
_EARLY_GENERATION = 5
_LONG = timedelta(seconds=600)


def held() -> dict[str, int]:
    return {"descriptors": len(os.listdir("/proc/self/fd")), "threads": len(os.listdir("/proc/self/task"))}


class Trainer:
    """Model, optimizer and the hooks that break the generation in the middle of a step.

    `kind`: how it is parallel, and "+" what becomes of groups that steps make: kept, destroyed, or made once ("first").
    """

    def __init__(self, kind: str) -> None:
        kind, _, self.in_steps = kind.partition("+")
        self.made: list[Any] = []
        torch.manual_seed(0)
        self.mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        data_parallel = self.mesh["dp"].get_group()
        model: Any = nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.Dropout(0.1), nn.ReLU(), nn.Linear(128, 64)
        )
        if "tp" in kind:
            parallelize_module(model, self.mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        self.middle = model[2]
        if "fsdp" in kind:
            for layer in model:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mesh=self.mesh["dp"])
            fully_shard(model, mesh=self.mesh["dp"])
        else:
            model = nn.parallel.DistributedDataParallel(model, process_group=data_parallel, bucket_cap_mb=0.01)
        self.model = model
        self.all_stop = False
        self.optimizer: Any
        if kind == "zero":
            self.optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, process_group=data_parallel, lr=1e-2)
        else:
            self.optimizer = torch.optim.AdamW(model.parameters(), 1e-2)

    def step(self, step: int, is_broken: Callable[[], bool], stop: bool = False) -> float:
        """Returns a loss of all ranks. `all_stop` tells afterwards whether every rank had wished to stop with this step."""
        generator = torch.Generator().manual_seed(100 * step + self.mesh.get_local_rank("dp"))
        batch = torch.randn(8, 64, generator=generator)
        loss = (self.model(batch) - batch).pow(2).mean()
        self.optimizer.zero_grad()
        loss.backward()
        shared = torch.stack([loss.detach(), torch.tensor(float(stop))])
        dist.all_reduce(shared)  # couples all ranks: none gets more than a step ahead
        extra = self.sum_in_groups(loss.detach().clone()) if self.in_steps else 0.0
        if not is_broken():
            self.optimizer.step()
        self.all_stop = int(shared[1]) == WORLD
        return float(loss.item()) + float(shared[0].item()) / WORLD + extra

    def sum_in_groups(self, value: torch.Tensor) -> float:
        """Sums in groups that the step makes: one of all ranks, and one of two."""
        if not self.made:
            groups = [dist.new_group(ranks) for ranks in (None, [0, 2], [1, 3])]
            self.made = [group for group in groups if isinstance(group, dist.ProcessGroup)]
        for group in self.made:
            dist.all_reduce(value, group=group)
        if self.in_steps == "destroyed":
            for group in self.made:
                dist.destroy_process_group(group)
        if self.in_steps != "first":
            self.made = []
        return float(value.item())

    def _inner(self) -> Any:
        return getattr(self.optimizer, "optim", self.optimizer)

    def snapshot(self) -> dict[str, Any]:
        def local(tensor: Any) -> Any:
            tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            return tensor.detach().clone() if isinstance(tensor, torch.Tensor) else tensor

        return {
            "parameters": [local(parameter) for parameter in self.model.parameters()],
            "optimizer": [
                {name: local(value) for name, value in self._inner().state[parameter].items()}
                for group in self._inner().param_groups
                for parameter in group["params"]
            ],
            "rng": torch.get_rng_state(),
        }

    @torch.no_grad()
    def restore(self, snapshot: dict[str, Any]) -> None:
        def into(target: Any, value: torch.Tensor) -> None:
            (target.to_local() if hasattr(target, "to_local") else target).copy_(value)

        for parameter, value in zip(self.model.parameters(), snapshot["parameters"], strict=True):
            into(parameter, value)
        parameters = [parameter for group in self._inner().param_groups for parameter in group["params"]]
        for parameter, saved in zip(parameters, snapshot["optimizer"], strict=True):
            state = self._inner().state[parameter]
            if not saved:
                state.clear()
            for name, value in saved.items():
                if name not in state:
                    assert not hasattr(parameter, "to_local"), "a sharded state is made by a step, never by a restore"
                    state[name] = torch.empty_like(value)
                into(state[name], value)
        self.optimizer.zero_grad()
        torch.set_rng_state(snapshot["rng"])


class Rank:
    """`case`: what the driver sent (groups_driver.py)."""

    def __init__(self, rank: int, port: int, case: dict[str, Any], *, joiner: bool) -> None:
        self.rank, self.case, self.joiner = rank, case | ({"at": None} if joiner else {}), joiner
        self.control = TCPStore("127.0.0.1", port, is_master=False)
        self.port = port
        self.waiting = TCPStore("127.0.0.1", port, is_master=False, timeout=_LONG)
        self.groups = Groups(record=None, host="127.0.0.1", on_broken=self.on_broken)
        self.ordered = 1
        self.order_came = threading.Condition()
        self.cancelled = threading.Event()
        self.released = False
        self.losses: dict[int, float] = {}
        self.snapshots: dict[int, dict[str, Any]] = {}
        self.armed = False
        self.attempts = 0
        self.stop = False
        self.strike_at: tuple[int, float] | None = None  # steps to go, and how far into the step then
        self.measured, self.held_early = False, held()

    def on_broken(self, generation: int, error: str) -> None:
        self.report(f"broken/{generation}", error[:200])

    def client(self) -> TCPStore:
        return TCPStore("127.0.0.1", self.port, is_master=False)

    def report(self, key: str, value: str = "1") -> None:
        with self.order_came:  # the client is not for two threads at a time
            self.control.set(key, value)

    def listen(self) -> None:
        """Obeys the driver: `order/<n>` holds the generation that begins (0: released) and who is to break on its own."""
        for number in range(10_000):
            self.waiting.wait([f"order/{number}"], _LONG)
            order = json.loads(self.waiting.get(f"order/{number}"))
            if order.get("stop"):
                self.stop = True
                continue
            if order.get("strike") is not None:
                if order["strike"] == self.rank:
                    self.strike_at = (order["after_steps"], order["after_s"])
                continue
            with self.order_came:  # before the break: it changes nothing in a rank that is about to reform
                self.released = order["generation"] == 0
                self.ordered = max(self.ordered, order["generation"])
                self.cancelled.set()
                self.order_came.notify_all()
            self.groups.break_generation(order["generation"] - 1, "ordered")
            with self.order_came:
                self.order_came.notify_all()
            if self.released:
                return

    def strike(self) -> None:
        """Breaks this rank's generation out of the blue, as a failed connection would."""
        generation = self.groups.generation
        if not self.groups.muted:
            self.groups.break_generation(generation, "struck")
        self.on_broken(generation, "struck")

    def break_here(self, *_: Any) -> None:
        if not self.armed:
            return
        self.armed = False
        match self.case["break"]:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case _:
                self.groups.break_generation(self.groups.generation, "the test")
                self.on_broken(self.groups.generation, "the test")

    def run(self) -> None:
        threading.Thread(target=self.listen, daemon=True).start()
        self.groups.init_default(
            rank=self.rank,
            world_size=WORLD,
            generation=self.case.get("generation", 1),
            store=None if self.joiner else self.client(),
            timeout=timedelta(seconds=60),
        )
        self.trainer = Trainer(self.case["kind"])
        if self.case["where"] == "backward":
            self.trainer.middle.register_full_backward_hook(self.break_here)
        else:
            self.trainer.middle.register_forward_hook(self.break_here)
        step = 0
        if self.joiner:
            self.attempts = REHEARSALS
            for rehearsed in range(REHEARSALS):
                self.trainer.step(rehearsed, lambda: False)
            step = self.recover(-1)
        else:
            self.keep(0)
            self.report(f"built/{self.rank}")
        while True:
            finished = False
            while step < self.case["steps"] and not finished:
                step, finished = self.try_step(step)
            self.report(f"done/{self.rank}")
            with self.order_came:
                self.order_came.wait_for(lambda: self.released or self.groups.broken)
            if self.released:
                break
            step = self.recover(step)
        self.report(
            f"result/{self.rank}",
            json.dumps({"losses": {str(k): loss.hex() for k, loss in self.losses.items()}, "held": self.held_at_end()}),
        )
        if self.case.get("exit") != "plain":
            self.groups.close()
            os._exit(0)
        self.groups.close()

    def try_step(self, step: int) -> tuple[int, bool]:
        """Returns the number of steps done after trying one, and whether it was the last."""
        if self.strike_at is not None:
            steps, after_s = self.strike_at
            self.strike_at = (steps - 1, after_s) if steps else None
            if not steps:
                threading.Timer(after_s, self.strike).start()
        if step == self.case.get("at") and self.rank in self.case["who"]:
            self.armed, self.case["at"] = True, None
        try:
            loss = self.trainer.step(step, lambda: self.groups.broken, self.stop)
        except Exception:
            if not self.groups.broken:
                raise
        self.attempts += 1
        if self.groups.broken and self.attempts < REHEARSALS:
            return step, False  # once more, muted: DDP rebuilds its buckets in its second forward, and must not do it alone
        if self.groups.broken:
            return self.recover(step), False
        self.losses[step] = loss
        self.keep(step + 1)
        if self.groups.generation >= _EARLY_GENERATION and not self.measured:
            self.measured, self.held_early = True, held()
        return step + 1, self.trainer.all_stop

    def held_at_end(self) -> list[dict[str, int]]:
        """Returns descriptors and threads held early and now; old groups and the threads that free them end after the reform."""
        early, deadline_s = self.held_early, time.monotonic() + 40
        while self.measured and any(held()[name] > early[name] for name in early) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return [early, held()]

    def keep(self, step: int) -> None:
        self.snapshots[step] = self.trainer.snapshot()
        self.snapshots.pop(step - _KEPT_SNAPSHOTS, None)
        if self.case["break"] in ("kill", "stop"):
            path = Path(self.case["folder"]) / f"{self.rank}-{step}"
            torch.save(self.snapshots[step], path.with_suffix(".new"))
            path.with_suffix(".new").rename(path)

    def recover(self, step: int) -> int:
        """Waits for orders and plans until a reform succeeds; returns the step to resume at."""
        while True:
            with self.order_came:
                self.order_came.wait_for(lambda: self.ordered > self.groups.generation or self.joiner)
                generation = self.ordered
                self.cancelled.clear()
            self.report(f"prepared/{generation}/{self.rank}", str(step))
            resume = self.await_plan(generation)
            if resume is None:
                continue
            try:
                self.groups.reform(generation=generation, store=self.client(), timeout_s=15, cancelled=self.cancelled)
            except UnavailableError as error:
                self.report(f"broken/{generation}", str(error)[:200])
                with self.order_came:
                    self.order_came.wait_for(lambda tried=generation: self.ordered > tried)  # type: ignore[misc]
                continue
            if resume not in self.snapshots:
                self.snapshots[resume] = torch.load(Path(self.case["folder"]) / f"{self.rank}-{resume}")
            self.trainer.restore(self.snapshots[resume])
            self.joiner = False
            self.report(f"reformed/{generation}/{self.rank}")
            return resume

    def await_plan(self, generation: int) -> int | None:
        while not self.cancelled.is_set():
            with self.order_came:
                if self.control.check([f"plan/{generation}"]):
                    return int(self.control.get(f"plan/{generation}"))
            time.sleep(0.002)
        return None


def main(rank: int, port: int, case: dict[str, Any], joiner: bool) -> None:
    """Runs one rank in a forked process and ends it."""
    log = os.open(Path(case["folder"]) / f"log-{rank}{'-joiner' * joiner}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 2)
    os.dup2(log, 1)
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # of all, it may die of it
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    Rank(rank, port, case, joiner=joiner).run()
