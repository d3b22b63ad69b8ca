"""DeadPool keeps PyTorch training alive. Training scripts use `deadpool.join()`; see trainer_hooks/run.py.

torch is imported only when `join` is first touched: supervisor, agent and command line do without it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deadpool.trainer_hooks.run import Run, join

__all__ = ["Run", "join"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'deadpool' has no attribute {name!r}")
    from deadpool.trainer_hooks import run

    return getattr(run, name)
