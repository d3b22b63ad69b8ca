"""Inductor's compiled libraries come into its cache whole, or not at all.

Inductor has the compiler write a library where every process looks for it, and takes one that is there for finished. A rank or a
compiler that is killed meanwhile leaves a part of one, which fails every process that loads it; and what only tries out which
vector instructions there are goes on without them, and computes other sums.
"""

import os
from collections.abc import Callable
from functools import wraps
from tempfile import TemporaryDirectory
from typing import Any

from deadpool.trainer_hooks.torch_internals import library_builder


def come_whole() -> None:
    """Has the compiler write each library beside its place, from which it is moved there: also in the processes that compile for
    this one, which are handed builders.
    """
    kind = library_builder()
    if not hasattr(kind.build, "__wrapped__"):
        kind.build = _whole(kind.build)
        kind.__reduce__ = lambda builder: (_again, (vars(builder),))


def _whole(build: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(build)
    def whole(builder: Any) -> None:
        place, says_where = builder.get_target_file_path(), builder._output
        folder, name = os.path.split(place)
        os.makedirs(folder, exist_ok=True)
        with TemporaryDirectory(prefix="unfinished-", dir=folder) as beside:
            unfinished = os.path.join(beside, name)
            builder._output = says_where.replace(place, unfinished)
            try:
                build(builder)
            finally:
                builder._output = says_where
            os.replace(unfinished, place)

    return whole


def _again(state: dict[str, Any]) -> Any:
    """Returns the builder with this state, in another process."""
    come_whole()
    builder = object.__new__(library_builder())
    vars(builder).update(state)
    return builder
