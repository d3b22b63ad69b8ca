"""Does DeadPool do on a GPU what its tests show on CPUs, and as fast as the device allows? One command, at most 8 minutes.

    python benchmarks/gpu_check.py > gpu_check.json

On one GPU: device to host against what pinned memory can do, and back; many small tensors, gathered; which states count after an
abort; the time of a step with and without protection, in paired blocks, every state kept; abort and reform of a world of one over
NCCL; a job that loses a node and a rank, compared to the bit.
Where there is no GPU the same code runs on small CPU twins of these, and the result says so. Exit code 1: a check has failed.
Progress goes to stderr, JSON to stdout.
"""

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import machine
from benchmarks.launched import Launched
from benchmarks.overhead import rate
from benchmarks.stats import quantile, summarize
from deadpool.host.errors import DeadpoolError
from deadpool.trainer_hooks.device import CudaDevice
from deadpool.trainer_hooks.groups.registry import Groups
from deadpool.trainer_hooks.protection.copy_engine import as_bytes
from deadpool.trainer_hooks.protection.device_engine import engine_for
from deadpool.trainer_hooks.torch_internals import TCPStore

ROOT = Path(__file__).resolve().parents[1]
CYCLES = 20
REFORM_TIMEOUT_S = 30.0
KILLS = ("--inject", "kill-node:1@8", "--inject", "kill-rank:0@16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """`width`, `layers`: of the model whose steps are timed."""

    copy_bytes: int
    small_tensors: int
    small_bytes: int
    width: int
    layers: int
    pairs: int
    block_steps: int


ON_GPU = Sizes(
    copy_bytes=4 << 30, small_tensors=16_000, small_bytes=4096, width=4096, layers=60, pairs=8, block_steps=8
)  # 60 * 4096 ** 2: about 1B parameters
TWIN = Sizes(copy_bytes=16 << 20, small_tensors=500, small_bytes=256, width=64, layers=4, pairs=2, block_steps=4)


# ---------------------------------------------------------------- copies


def copies(device: torch.device, sizes: Sizes) -> dict[str, Any]:
    """Returns GB/s of our copies in both directions and of plain ones with pinned memory, and whether all bytes are right."""
    source = torch.randint(0, 255, (sizes.copy_bytes,), dtype=torch.uint8, device=device)
    engine = engine_for(device)
    memory = torch.frombuffer(mmap.mmap(-1, sizes.copy_bytes), dtype=torch.uint8)
    engine.register(memory)
    pinned = torch.empty(sizes.copy_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")

    def ours() -> None:
        engine.landed(engine.copy([source], [memory], engine.at_boundary()))

    times = {
        "to_host": fastest(ours, device),
        "to_host_pinned": fastest(lambda: pinned.copy_(source, non_blocking=True), device),
    }
    right = bool(torch.equal(as_bytes(source).cpu(), memory)) and engine.same(source, memory)
    back = torch.empty_like(source)
    times |= {
        "to_device": fastest(lambda: back.copy_(memory, non_blocking=True), device),
        "to_device_pinned": fastest(lambda: back.copy_(pinned, non_blocking=True), device),
    }
    return {
        "ok": right and bool(torch.equal(back, source)),
        "bytes": sizes.copy_bytes,
        "gb_s": {name: rate(sizes.copy_bytes, taken_s) for name, taken_s in times.items()},
    }


def small_copies(device: torch.device, sizes: Sizes) -> dict[str, Any]:
    """Returns what a state of many small tensors takes, gathered and one by one, and whether all bytes are right."""
    each_bytes = sizes.small_bytes
    sources = [torch.full((each_bytes // 4,), index, dtype=torch.float32, device=device) for index in range(sizes.small_tensors)]
    engine = engine_for(device)
    memory = torch.frombuffer(mmap.mmap(-1, each_bytes * sizes.small_tensors), dtype=torch.uint8)
    engine.register(memory)
    targets = [part.view(torch.float32) for part in torch.split(memory, each_bytes)]

    def gathered() -> None:
        engine.landed(engine.copy(sources, targets, engine.at_boundary()))

    def apart() -> None:
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source, non_blocking=True)

    times_s = {"gathered": fastest(gathered, device), "apart": fastest(apart, device)}
    memory.zero_()
    gathered()
    return {
        "ok": all(bool((target == index).all()) for index, target in enumerate(targets)),
        "tensors": len(sources),
        "s": {way: round(taken_s, 6) for way, taken_s in times_s.items()},
    }


def aborted_steps(device: torch.device) -> dict[str, Any]:
    """Returns whether a state counts exactly where the device had come to its end before the abort."""
    engine, late = engine_for(device), device.type != "cuda"
    early = engine.at_boundary()
    synchronize(device)
    if device.type == "cuda":
        torch.cuda._sleep(1 << 30)  # type: ignore[no-untyped-call]  # what a collective does that waits for a peer
    in_flight = engine.at_boundary()
    engine.abort_begins()
    behind = engine.at_boundary()
    engine.begin()
    found = [engine.is_true(point) for point in (early, in_flight, behind, engine.at_boundary())]
    return {"ok": found == [True, late, late, True], "counts": found}


def fastest(action: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """Returns the median seconds of the action and of what it has put on the device."""
    times = []
    for _ in range(repeats):
        synchronize(device)
        began_s = time.perf_counter()
        action()
        synchronize(device)
        times.append(time.perf_counter() - began_s)
    return statistics.median(times)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ---------------------------------------------------------------- abort and reform


def reforms(device: torch.device) -> dict[str, Any]:
    """Returns what it takes to abort a world of one with a collective in flight and to open it again, many times over."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    groups = Groups(record=None, host="127.0.0.1", on_broken=lambda _generation, _error: None)
    client = TCPStore("127.0.0.1", store.port, is_master=False)
    groups.init_default(rank=0, world_size=1, generation=1, store=client)
    given: Tensor = torch.ones(1 << 20, device=device)
    times_s, right = [], True
    try:
        for generation in range(2, CYCLES + 2):
            dist.all_reduce(given, async_op=True)
            began_s = time.perf_counter()
            groups.break_generation(generation, "the check")
            synchronize(device)
            client = TCPStore("127.0.0.1", store.port, is_master=False)
            groups.reform(generation=generation, store=client, timeout_s=REFORM_TIMEOUT_S, cancelled=threading.Event())
            times_s.append(time.perf_counter() - began_s)
            given.fill_(generation)
            dist.all_reduce(given)
            right &= bool((given == generation).all())
    finally:
        groups.close()
    return {
        "ok": right and len(times_s) == CYCLES,
        "backend": "nccl" if device.type == "cuda" else "gloo",
        "s": summarize(times_s),
    }


def own_time(device: torch.device) -> dict[str, Any]:
    """Returns what the clock of calls says of steps that compute long and wait for nobody: nearly all is the rank's own."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    on_gpu = CudaDevice(device) if device.type == "cuda" else None
    groups = Groups(record=None, host="127.0.0.1", on_broken=lambda _generation, _error: None, device=on_gpu)
    groups.init_default(rank=0, world_size=1, generation=1, store=TCPStore("127.0.0.1", store.port, is_master=False))
    matrix = torch.rand(4096 if on_gpu else 256, 4096 if on_gpu else 256, device=device) / 4096
    try:
        dist.all_reduce(matrix)
        synchronize(device)
        before_ns, began_s = groups.call_time.total_ns(), time.perf_counter()
        for _ in range(20):
            for _ in range(10):
                matrix = matrix @ matrix
            dist.all_reduce(matrix)
        synchronize(device)
        wall_s = time.perf_counter() - began_s
        calls_s = (groups.call_time.total_ns() - before_ns) / 1e9
    finally:
        groups.close()
        dist.destroy_process_group()
    return {"ok": groups.call_time.known and 0 < calls_s < wall_s, "wall_s": round(wall_s, 4), "calls_s": round(calls_s, 4)}


# ---------------------------------------------------------------- the time of a step


def train(out: Path, sizes: Sizes) -> None:
    """One rank, inside the job: blocks of steps with and without protection in turns; writes the times and its counters."""
    import deadpool

    run = deadpool.join()
    torch.manual_seed(0)
    half = torch.bfloat16 if run.device.type == "cuda" else torch.float32
    layers = [torch.nn.Linear(sizes.width, sizes.width, bias=False, dtype=half) for _ in range(sizes.layers)]
    model = torch.nn.Sequential(*layers).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    guard = run.protect(model=model, optimizer=optimizer)
    batch = torch.randn(sizes.width, sizes.width, dtype=half, device=run.device)

    def train_step(step: int) -> None:
        optimizer.zero_grad()
        model(batch).float().pow(2).mean().backward()
        optimizer.step()
        synchronize(run.device)

    def protected(step: int) -> bool:
        return step // sizes.block_steps % 4 in (0, 3)

    times_s: dict[str, list[float]] = {"protected": [], "unprotected": []}
    first = 2 * sizes.block_steps  # the first blocks warm up
    until, last_s = first + 2 * sizes.pairs * sizes.block_steps, time.perf_counter()
    for step, _ in guard.run(train_step, until=until):
        now_s = time.perf_counter()
        if step >= first and step % sizes.block_steps >= 2:  # the last snapshot of the block before may still be under way
            times_s["protected" if protected(step) else "unprotected"].append(now_s - last_s)
        guard.protecting = step + 1 >= until or protected(step + 1)
        last_s = time.perf_counter()
    counters = guard.counters
    found = {"times_s": times_s, "commits": counters.commits, "copied_bytes": counters.copied_bytes, "copy_s": counters.copy_s}
    (out / "found.json").write_text(json.dumps(found))


def step_times(sizes: Sizes, folder: Path) -> dict[str, Any]:
    sizes_text = json.dumps(asdict(sizes))
    ended = job(folder / "steps", ["--nnodes", 1, "--snapshot-every", 1, __file__, "--in-job", folder, "--sizes", sizes_text])
    if ended is not None:
        return {"ok": False, "why": ended}
    found = json.loads((folder / "found.json").read_text())
    times_s = found["times_s"]
    ratios = sorted(a / statistics.median(times_s["unprotected"]) for a in times_s["protected"])
    return {
        "ok": found["commits"] > 0,
        "step_s": {kind: summarize(times) for kind, times in times_s.items()},
        "ratio_of_medians": round(statistics.median(ratios), 4),
        "ratio_quartiles": [round(quantile(ratios, share), 4) for share in (0.25, 0.75)],
        "bytes_a_state": found["copied_bytes"] // max(1, found["commits"]),
        "copy_gb_s": rate(found["copied_bytes"], found["copy_s"]),
    }


# ---------------------------------------------------------------- failures


def failures(folder: Path) -> dict[str, Any]:
    """Runs the example unbroken and with a killed node and a killed rank: the losses of both must be the same to the bit.

    Its ranks share the one GPU, which NCCL refuses: Gloo serves their CUDA tensors.
    """
    logs = []
    for name, options in (("unbroken", ()), ("broken", KILLS)):
        log = folder / f"{name}.log"
        script = [ROOT / "examples" / "train_gpt.py", "--steps", 24, "--parallel", "ddp", "--loss-log", log]
        summary = folder / f"{name}.json"
        ended = job(folder / name, ["--nnodes", 2, "--spares", 1, "--summary-json", summary, *options, *script])
        if ended is not None:
            return {"ok": False, "why": ended}
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        logs.append({(line["rank"], line["step"]): line["loss"] for line in lines})
    recoveries = json.loads((folder / "broken.json").read_text())["recoveries"]
    same = logs[0] == logs[1]
    return {"ok": same and len(recoveries) == 2, "bitwise": same, "recoveries_s": [each["total_s"] for each in recoveries]}


def job(folder: Path, options: list[Any]) -> str | None:
    """Runs deadpool-launch with these options, one rank on each node; returns None, or why it has failed."""
    head = [sys.executable, "-m", "deadpool.cli.launch", "--standalone", "--nproc-per-node", 1, "--log-dir", folder / "logs"]
    launched = Launched([str(part) for part in (*head, *options)], folder, {"DEADPOOL_CUDA_GROUPS": "gloo"})
    try:
        code = launched.process.wait(timeout=150)
    except subprocess.TimeoutExpired as error:
        return f"{error}: {launched.tail()}"
    finally:
        launched.end()
    return f"exit code {code}: {launched.tail()}" if code else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--in-job", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_job:
        train(args.in_job, Sizes(**json.loads(args.sizes)))
        return 0
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    sizes = ON_GPU if on_gpu else TWIN
    checks: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="dp-gpu-") as text:
        folder = Path(text)
        steps: dict[str, Callable[[], dict[str, Any]]] = {
            "copies": lambda: copies(device, sizes),
            "small copies": lambda: small_copies(device, sizes),
            "aborted steps": lambda: aborted_steps(device),
            "own time": lambda: own_time(device),
            "reforms": lambda: reforms(device),
            "steps": lambda: step_times(sizes, folder),
            "failures": lambda: failures(folder),
        }
        for name, check in steps.items():
            print(f"{name} ...", file=sys.stderr, flush=True)
            try:
                checks[name] = check()
            except (DeadpoolError, RuntimeError, OSError) as error:
                checks[name] = {"ok": False, "why": f"{type(error).__name__}: {error}"}
    where = torch.cuda.get_device_name(0) if on_gpu else "no GPU here: these are the CPU twins of the checks"
    described = {"benchmark": "gpu_check", "device": where, "machine": machine.describe(), "load": round(os.getloadavg()[0], 2)}
    print(json.dumps(described | {"checks": checks}, indent=2))
    return 0 if all(check["ok"] for check in checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
