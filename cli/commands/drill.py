"""deadpool drill: does a script recover, to the bit? A short job is taken through every way back; a report says what differed."""

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from deadpool.cli.environment import read_environment
from deadpool.cli.exit_codes import say
from deadpool.cli.options.read import options_of
from deadpool.cli.options.setting import CONTEXT_SETTINGS, HeadedCommand
from deadpool.cli.options.settings import with_settings
from deadpool.cli.plan.options import LaunchOptions
from deadpool.cli.plan.resolve import resolve
from deadpool.host.errors import ConfigError
from deadpool.trainer_hooks.drill.report import LEFT_OUT, SAME, WayTaken, shared_when_hot, ways_taken

_USAGE = 2
_DIFFERS = 1
_OF_SIGNALS = 128


@click.command("drill", cls=HeadedCommand, context_settings=CONTEXT_SETTINGS)
@with_settings
@click.option("--steps", type=click.IntRange(min=2), metavar="K", default=5,
              help="Drill after K steps; --drill-at adds further ones.  [default: 5]")  # fmt: skip
@click.option("--json", "as_text", is_flag=True, help="The report as JSON on stdout; all else goes to stderr.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def drill(context: click.Context, /, steps: int, as_text: bool, **_: Any) -> int:
    """Prove that SCRIPT recovers bit for bit, before a failure does.

    After K steps all ranks go back by one step and do it again, by each way there is: from their own snapshots, in new
    processes, on a spare node, from a persistent checkpoint. What they hold and what the step returns must be the same, to the
    bit; where it is not, the likely cause is said. Exit code 0: all the same; 1: not; 2: it could not be tried.

    Unless options say otherwise: 2 nodes and 1 spare on this machine, with a checkpoint folder that is removed afterwards.
    """
    with tempfile.TemporaryDirectory(prefix="deadpool-drill-") as checkpoints:
        plan = resolve(_drilled(options_of(context), steps, checkpoints), read_environment())
        from deadpool.cli.start import start  # what only a valid command line needs: errors are instant

        with _stdout_to_stderr() if as_text else contextlib.nullcontext():
            exit_code = start(plan, say)
    log_dir = Path(plan.config.log_dir)
    events = [json.loads(line) for line in (log_dir / "events.jsonl").read_text().splitlines()]
    taken = ways_taken(log_dir, events, plan.config.world_size)
    if exit_code == _USAGE or exit_code > _OF_SIGNALS:
        return exit_code
    if not taken:
        raise ConfigError(_never_reached(events, plan.config.drill_at))
    looked, shared = shared_when_hot(log_dir, events, plan.config.world_size)
    same = exit_code == 0 and all(way.outcome in (SAME, LEFT_OUT) for way in taken)
    if as_text:
        hot = {"safe_to_keep_hot": not shared if looked else None, "shared_when_hot": shared}
        click.echo(json.dumps({"same": same, "exit_code": exit_code, "ways": [asdict(way) for way in taken], **hot}, indent=2))
    else:
        _print(taken, same, log_dir)
        if looked:
            _print_hot(shared)
    return 0 if same else _DIFFERS


def _drilled(options: LaunchOptions, steps: int, checkpoints: str) -> LaunchOptions:
    """Returns the options with what a drill needs, where the user has not said otherwise."""
    job = dict(options.job)
    job.pop("steps"), job.pop("as_text")
    job |= {"drill_at": tuple(sorted({steps, *job["drill_at"]})), "drill_only": True}
    defaults = {"nnodes": (2, 2), "spares": 1, "checkpoint_dir": checkpoints, "resume": "never"}
    job |= {name: value for name, value in defaults.items() if name not in options.given}
    elsewhere = options.hosts or options.slurm or options.torchrun
    return replace(options, job=job, all_here=options.all_here or not elsewhere, given=options.given | {"checkpoint_dir"})


def _never_reached(events: list[dict[str, Any]], boundaries: tuple[int, ...]) -> str:
    ends = next((event for event in events if event["event"] == "job_ended"), {"reason": "the job has no end", "exit_code": 1})
    if not any(event["event"] == "hooked" for event in events):
        return "the script has not called deadpool.join(): without it there is nothing to go back to"
    if ends["exit_code"]:
        return f"the job failed before step {boundaries[0]}, unbroken: {ends['reason']}"
    return f"the training ended before step {boundaries[0]}: let it train longer, or use a smaller --steps"


def _print(taken: list[WayTaken], same: bool, log_dir: Path) -> None:
    for number, way in enumerate(taken):
        for line in way.lines(taken[:number]):
            click.echo(line)
    if same and any(way.beside for way in taken):
        click.echo(
            "Not one bit differs in the state and in what the steps give. But what is named above is not in the state, and no"
        )
        click.echo("recovery brings it back. Does a later step use it, or the script's end? Then pass what holds it in extra=.")
    elif same:
        click.echo("Not one bit differs: this script recovers by every way there is.")
    else:
        click.echo(f"Not all is the same. What each rank held is in {log_dir}/drill.")


def _print_hot(shared: list[str]) -> None:
    if not shared:
        click.echo("Safe to keep hot: no process that took over a rank had a file or a port open that the living rank has.")
        return
    click.echo("Not safe to keep hot (--spare-readiness hot, --hot-standins): beside the living rank, which has it open, too,")
    for each in shared:
        click.echo(f"    {each}")
    click.echo("    let the script ask run.joined_late before it opens that (docs/spares.md)")


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """What ranks print would mix with the JSON."""
    sys.stdout.flush()
    before = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(before, 1)
        os.close(before)
