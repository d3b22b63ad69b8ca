"""The command line of deadpool-launch as values, just as it was read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """`job`: the values for JobConfig's fields, by field. `given`: the fields that the command line or a variable sets.

    `torchrun`: those of torchrun's other options that were given, by option. The rest are settings of the launcher's own.
    """

    script: str
    arguments: tuple[str, ...]
    job: Mapping[str, Any]
    given: frozenset[str]
    torchrun: Mapping[str, Any]
    module: bool
    no_python: bool
    run_path: bool
    all_here: bool  # --standalone
    hosts: tuple[str, ...]
    interface: str | None
    port: int | None
    dashboard: str | None
    summary_json: str | None
    preflight: bool
    slurm: bool
    slurm_poll_s: float
    requeue: bool
