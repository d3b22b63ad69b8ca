"""How the machine is doing, for the heartbeat."""

from dataclasses import dataclass

import psutil

from deadpool.host.disk import free_bytes

VAULT_ROOT = "/dev/shm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Shares are 0..1 of this machine; `cpu_share` is the mean since the call before."""

    cpu_share: float = 0.0
    memory_share: float = 0.0
    shm_free_bytes: int = 0


def read_health() -> Health:
    return Health(
        cpu_share=psutil.cpu_percent(None) / 100,
        memory_share=psutil.virtual_memory().percent / 100,
        shm_free_bytes=free_bytes(VAULT_ROOT),
    )
