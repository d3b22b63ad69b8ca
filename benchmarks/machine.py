"""Describes the machine that a benchmark ran on: figures without it mean nothing."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import psutil


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
