"""What a person does to a running job: inject, drain, stop. grpc is imported by the command that needs it."""

import time

import click

from deadpool.cli.commands.which_job import job_option
from deadpool.cli.exit_codes import say
from deadpool.cli.launcher.job_dirs import find_job, is_running
from deadpool.host.errors import ConfigError, DeadpoolError
from deadpool.proto.faults import FAULTS, Target
from deadpool.proto.step import NO_STEP

_DRAIN_POLL_S = 0.2
_POLL_S = 0.02
_STOP_TIMEOUT_S = 120.0
_KINDS = "\n".join(f"  {kind:<22}{fault.does}" for kind, fault in FAULTS.items())


@click.command(epilog=f"\b\nKinds:\n{_KINDS}", short_help="Inject a failure, now or in a step.")
@click.argument("kind", metavar="KIND", type=click.Choice(tuple(FAULTS)))
@click.argument("target", metavar="[TARGET]", type=click.IntRange(min=0), required=False)
@click.option("--step", type=click.IntRange(min=0), metavar="N", help="Inject it in the middle of this step.  [default: now]")
@job_option
def inject(kind: str, target: int | None, step: int | None, job_id: str | None) -> None:
    """Inject a failure: KIND, and its TARGET: a rank, or a node's launch index."""
    from deadpool.cli import client

    if target is None:
        if FAULTS[kind].target is not Target.NONE:
            raise ConfigError(f"{kind}: say which {FAULTS[kind].target}")
        target = 0
    with client.connected(find_job(job_id)) as job:
        job.inject(kind, target, NO_STEP if step is None else step)
    say(f"{kind} {target} {'now' if step is None else f'in step {step}'}")


@click.command(short_help="Move a node's ranks to a spare.")
@click.argument("node", metavar="NODE")
@job_option
@click.option("--reason", default="", help="For the events and logs.")
@click.option("--undo", is_flag=True, help="It may have ranks again.")
def drain(node: str, job_id: str | None, reason: str, undo: bool) -> None:
    """Move NODE's ranks to a spare, though nothing has failed, and wait until the node can be switched off.

    NODE is a name as `deadpool status` shows it, or a launch index. Without a spare nothing changes.
    """
    folder = find_job(job_id)
    from deadpool.cli import client
    from deadpool.cli.commands.drain import drain_node

    with client.connected(folder) as job:
        if undo:
            job.drain(node, reason, undo=True)
            say(f"{node} may have ranks again")
            return
        say(drain_node(job, node, reason, pause=lambda: time.sleep(_DRAIN_POLL_S)))


@click.command(short_help="End the job, and wait until it is gone.")
@job_option
@click.option("--reason", default="deadpool stop", show_default=True, help="For the events and logs.")
def stop(job_id: str | None, reason: str) -> None:
    """End the job and wait until nothing of it is left."""
    folder = find_job(job_id)
    from deadpool.cli import client

    with client.connected(folder) as job:
        job.stop(reason)
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    while is_running(folder):  # until the launcher has cleared up
        if time.monotonic() > deadline:
            raise DeadpoolError(f"job {folder.name} has not ended after {_STOP_TIMEOUT_S:.0f} s")
        time.sleep(_POLL_S)
    say(f"job {folder.name} has ended")
