"""Describes the machine that a benchmark ran on: figures without it mean nothing."""

import importlib.metadata
import os
import platform
import time
from pathlib import Path
from typing import Any

import psutil

MEMCPY_REPEATS = 9


def memcpy_gb_s(size_bytes: int) -> float:
    """Returns how fast one core copies a buffer of this size into another (median; both have been touched before)."""
    source, target = (
        memoryview(bytearray(os.urandom(1 << 16) * (size_bytes // (1 << 16) + 1)))[:size_bytes],
        bytearray(size_bytes),
    )
    times = []
    for _ in range(MEMCPY_REPEATS):
        began_s = time.perf_counter()
        target[:] = source
        times.append(time.perf_counter() - began_s)
    return size_bytes / sorted(times)[MEMCPY_REPEATS // 2] / 1e9


def describe() -> dict[str, Any]:
    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_before": round(os.getloadavg()[0], 2),  # other work on the machine: read the figures with it in mind
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "system": f"{platform.system()} {platform.release()}",
    }
