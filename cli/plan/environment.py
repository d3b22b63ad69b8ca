"""What a launch finds where it is started, read once: `resolve` asks nobody else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deadpool.cli.plan.plan import Rendezvous


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchEnvironment:
    """`variables`: of the process. `folder`: the current one. `python`: this interpreter. `suffix`: makes a job's name its own.

    What only some command lines ask, and what takes time to find out, are functions: `find_program(name)` returns a path or None,
    `count_devices(kind, python)` the ranks that `--nproc-per-node kind` means, `find_rendezvous(torchrun's options, interface)`
    where machines meet, None when the options do not say it.
    """

    variables: Mapping[str, str]
    folder: str
    python: str
    suffix: str
    find_program: Callable[[str], str | None]
    count_devices: Callable[[str, str], int]
    find_rendezvous: Callable[[Mapping[str, Any], str | None], Rendezvous | None]
