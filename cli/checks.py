"""Is what a plan names there? Looks at this machine, before anything is started."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from deadpool.agent import needs
from deadpool.cli.nodes.netns import check_possible
from deadpool.cli.plan.plan import LaunchPlan, Standalone
from deadpool.host.errors import ConfigError
from deadpool.host.limits import too_few_processes
from deadpool.host.script import is_runnable
from deadpool.proto.checkpoint import MARKER
from deadpool.proto.config import Entry, JobConfig

_OWN_THREADS = 10  # the supervisor's, most of them gRPC's, and a warm process


def check_machine(plan: LaunchPlan) -> None:
    """Makes the checkpoints' folder, if need be. ConfigError names what is missing, or cannot be written."""
    _check_script(plan.config.command[0], plan.config.entry)
    _check_checkpoints(plan.config)
    if plan.summary_json is not None and not os.access(Path(plan.summary_json).parent, os.W_OK):
        raise ConfigError(f"--summary-json {plan.summary_json}: cannot write to {Path(plan.summary_json).parent}")
    if plan.config.netns:
        check_possible()
    if isinstance(plan.way, Standalone) and (reason := too_few_processes(_processes(plan.config, needs.processes))):
        raise ConfigError(f"{reason}, or start fewer ranks")


def tight_limits(plan: LaunchPlan) -> str:
    """Returns in one line which limit the job may meet once its ranks have called join(); "" for none."""
    if not isinstance(plan.way, Standalone):
        return ""
    reason = too_few_processes(_processes(plan.config, needs.processes_once_joined))
    return f"a protected job may fail later: {reason}" if reason else ""


def _processes(config: JobConfig, of_node: Callable[[JobConfig], int]) -> int:
    """Returns how many processes and threads a job on this machine needs."""
    return _OWN_THREADS + (config.nnodes + config.spares) * of_node(config)


def _check_script(script: str, entry: Entry) -> None:
    """What is passed on stays as it was given: sys.argv is torchrun's."""
    if entry is Entry.PROGRAM and shutil.which(script) is None:
        raise ConfigError(f"program {script}: not found, or not executable")
    if entry is Entry.SCRIPT and not is_runnable(script):
        raise ConfigError(f"script {script}: " + ("a folder without __main__.py" if Path(script).is_dir() else "no such file"))


def _check_checkpoints(config: JobConfig) -> None:
    if config.resume not in ("auto", "never") and not Path(config.resume, MARKER).is_file():
        raise ConfigError(f"--resume {config.resume}: no complete checkpoint there (it has no {MARKER})")
    if not config.checkpoint_dir:
        return
    path = Path(config.checkpoint_dir)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--checkpoint-dir {path}: {error.strerror}") from error
    if not os.access(path, os.W_OK):
        raise ConfigError(f"--checkpoint-dir {path}: cannot write there")
