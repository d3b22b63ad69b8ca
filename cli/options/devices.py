"""How many ranks `--nproc-per-node auto|cpu|gpu|xpu` means on this machine."""

import os
import subprocess

from deadpool.host.errors import ConfigError

_COUNT_TIMEOUT_S = 120
_COUNT = """
import sys, torch
kind = sys.argv[1]
device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
if kind == "auto" and device is None:
    import os
    print(len(os.sched_getaffinity(0)))
else:
    wanted = {"auto": device and device.type, "gpu": "cuda", "xpu": "xpu"}[kind]
    print(torch.accelerator.device_count() if device is not None and device.type == wanted else 0)
"""


def count_devices(kind: str, python: str) -> int:
    """Returns how many ranks `--nproc-per-node kind` means. The ranks' own interpreter counts: only torch knows its devices."""
    if kind == "cpu":
        return len(os.sched_getaffinity(0))
    done = subprocess.run(
        [python, "-P", "-c", _COUNT, kind], capture_output=True, text=True, timeout=_COUNT_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise ConfigError(f"--nproc-per-node {kind}: {python} cannot count: {(done.stderr.strip() or '?').splitlines()[-1]}")
    count = int(done.stdout.split()[-1])
    if count == 0:
        raise ConfigError(f"--nproc-per-node {kind}: there is none here; give a number, or cpu")
    return count
