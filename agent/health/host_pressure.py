"""What does the node run out of? Said before the kernel or a full disk acts; readings in, changes out."""

import os
import resource
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from deadpool.agent.health.fd_exhaustion import is_exhaustion
from deadpool.host.disk import free_bytes
from deadpool.host.vault_folders import VAULT_ROOT
from deadpool.proto.messages import HostTrouble

TROUBLES = ("memory", "shm", "files", "log-disk")
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Shares are 0..1. `files_share`: of this agent's own limit; its ranks have theirs. `log_problem`: why no log is written."""

    memory_share: float = 0.0
    memory_free_bytes: int = 0
    shm_share: float = 0.0
    shm_free_bytes: int = 0
    files_share: float = 0.0
    log_free_bytes: int = 1 << 62
    log_problem: str = ""


def read_usage(log_dir: Path, log_problem: str = "") -> Usage:
    """OSError: there is no descriptor to look with."""
    log_free_bytes = 0
    try:
        log_free_bytes = free_bytes(log_dir)
    except OSError as error:  # somebody has removed the folder, or unmounted it
        log_problem = str(error)
    memory, shm = psutil.virtual_memory(), os.statvfs(VAULT_ROOT)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Usage(
        memory_share=memory.percent / 100,
        memory_free_bytes=memory.available,
        shm_share=1 - shm.f_bavail / max(1, shm.f_blocks),
        shm_free_bytes=free_bytes(VAULT_ROOT),
        files_share=len(os.listdir("/proc/self/fd")) / limit if limit > 0 else 0.0,
        log_free_bytes=log_free_bytes,
        log_problem=log_problem,
    )


class PressureWatch:
    """Remembers what it has said. A trouble begins at one value and is over at a better one, so that it does not flicker.

    `last`: what was seen. `present`: the kinds of trouble, of TROUBLES.
    """

    def __init__(self) -> None:
        self.present: frozenset[str] = frozenset()
        self.last = Usage()

    def look(self, log_dir: Path, log_problem: str = "") -> list[HostTrouble]:
        """Returns what has begun or is over since the last look. Without a descriptor to look with, that is what has begun."""
        try:
            self.last = read_usage(log_dir, log_problem)
        except OSError as error:
            if not is_exhaustion(error):
                raise
            self.last = replace(self.last, files_share=1.0)
        return self.changes(self.last)

    def changes(self, usage: Usage) -> list[HostTrouble]:
        """Returns what has begun or is over since the last call."""
        return [
            *self._change("memory", usage.memory_share, 0.95, 0.92,
                          f"memory is nearly full: {_mib(usage.memory_free_bytes)} left"),
            *self._change("shm", usage.shm_share, 0.95, 0.92, f"{VAULT_ROOT} is nearly full: {_mib(usage.shm_free_bytes)} left"),
            *self._change("files", usage.files_share, 0.9, 0.8, f"{usage.files_share:.0%} of the allowed open files are in use"),
            *self._change(
                "log-disk", 0 if usage.log_problem else -usage.log_free_bytes, -64 * _MIB, -128 * _MIB,
                f"logs cannot be written: {usage.log_problem}" if usage.log_problem else
                f"the disk of the logs is nearly full: {_mib(usage.log_free_bytes)} left",
            ),
        ]  # fmt: skip

    def _change(self, kind: str, value: float, begins: float, over: float, text: str) -> list[HostTrouble]:
        if kind not in self.present and value >= begins:
            self.present |= {kind}
            return [HostTrouble(kind=kind, text=text)]
        if kind in self.present and value < over:
            self.present -= {kind}
            return [HostTrouble(kind=kind, text="")]
        return []


def _mib(size_bytes: int) -> str:
    return f"{size_bytes // _MIB} MiB"
