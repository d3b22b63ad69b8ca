"""DeadPool keeps PyTorch training alive. Training scripts use `deadpool.join()`; see trainer_hooks/run.py.

torch is imported only when `join` is first touched: supervisor, agent and command line do without it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deadpool.trainer_hooks.run import Run, join

    __version__: str

__all__ = ["Run", "__version__", "join"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from deadpool.host.version import package_version

        return package_version()
    if name not in __all__:
        raise AttributeError(f"module 'deadpool' has no attribute {name!r}")
    from deadpool.trainer_hooks import run

    return getattr(run, name)
