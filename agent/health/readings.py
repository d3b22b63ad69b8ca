"""How the machine is doing, for the heartbeat."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

from deadpool.host.disk import free_bytes
from deadpool.host.vault_folders import VAULT_ROOT

_LOOPBACK = "lo"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Shares are 0..1 of this machine; `cpu_share` is the mean since the call before.

    Bytes sent and received: by all interfaces since the machine was started; loopback counts where there is nothing else.
    """

    cpu_share: float = 0.0
    memory_share: float = 0.0
    shm_free_bytes: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


def read_health() -> Health:
    counters = psutil.net_io_counters(pernic=True)
    used = [each for name, each in counters.items() if name != _LOOPBACK and each.bytes_sent] or list(counters.values())
    return Health(
        sent_bytes=sum(each.bytes_sent for each in used),
        received_bytes=sum(each.bytes_recv for each in used),
        cpu_share=psutil.cpu_percent(None) / 100,
        memory_share=psutil.virtual_memory().percent / 100,
        shm_free_bytes=free_bytes(VAULT_ROOT),
    )


def rss_bytes(pid: int) -> int:
    """Returns the memory that the process holds, 0 when it has ended."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def anonymous_bytes(pid: int) -> int:
    """Returns how much memory the process has that is of no file, what it shares since a fork included; 0 when it has ended."""
    try:
        found = re.search(r"^RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) << 10 if found else 0
