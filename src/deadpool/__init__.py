"""DeadPool keeps PyTorch training alive. Training scripts use `deadpool.join()`; see trainer_hooks/run.py.

torch is imported only when a name is touched that needs it: supervisor, agent and command line do without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deadpool.host.errors import ConfigError, DeadpoolError
    from deadpool.trainer_hooks.loop import Attempt, Guard
    from deadpool.trainer_hooks.protection.counters import Counters
    from deadpool.trainer_hooks.run import Run, join, joined, main

    __version__: str

__all__ = ["Attempt", "ConfigError", "Counters", "DeadpoolError", "Guard", "Run", "__version__", "join", "joined", "main"]
_HOMES = {
    "Attempt": "trainer_hooks.loop",
    "ConfigError": "host.errors",
    "Counters": "trainer_hooks.protection.counters",
    "DeadpoolError": "host.errors",
    "Guard": "trainer_hooks.loop",
    "Run": "trainer_hooks.run",
    "join": "trainer_hooks.run",
    "joined": "trainer_hooks.run",
    "main": "trainer_hooks.run",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from deadpool.host.version import package_version

        return package_version()
    if name not in _HOMES:
        raise AttributeError(f"module 'deadpool' has no attribute {name!r}")
    return getattr(import_module(f"deadpool.{_HOMES[name]}"), name)
