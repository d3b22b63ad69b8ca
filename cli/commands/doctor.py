"""deadpool doctor: what would trouble a job, from the command line."""

import json
import sys
from typing import Any

import click

from deadpool.cli.commands.which_job import job_option, json_option
from deadpool.cli.launcher.job_dirs import find_job
from deadpool.cli.options.types import host_names, size
from deadpool.proto.config import Places


@click.command(short_help="Look for what would trouble a job.")
@job_option
@json_option
@click.option("--hosts", type=host_names, metavar="A,B,...", help="Look at these machines as well, over ssh.")
@click.option("--interface", metavar="NAME", help="The network interface by which nodes are to reach each other.")
@click.option(
    "--nnodes", type=click.IntRange(min=1), metavar="N", default=1, show_default=True, help="The job that is meant: its nodes."
)
@click.option(
    "--nproc-per-node", type=click.IntRange(min=1), metavar="N", default=1, show_default=True, help="Its ranks on each."
)
@click.option(
    "--replicas", type=click.IntRange(min=0), metavar="N", default=1, show_default=True, help="Copies of each unique shard."
)
@click.option("--spares", type=click.IntRange(min=0), metavar="N", default=0, show_default=True, help="Its spares.")
@click.option(
    "--place-replicas", type=click.Choice([each.value for each in Places]), default=Places.RING.value, show_default=True,
    help="As it is launched with.",
)  # fmt: skip
@click.option("--state-size", type=size, default="0", metavar="SIZE", help="One rank's parameters and optimizer, as 12G.")
@click.option("--unique-size", type=size, metavar="SIZE", help="What of it no other rank holds.  [default: all]")
@click.option("--checkpoints", is_flag=True, help="It writes persistent checkpoints.")
@click.option("--verify-every", type=click.IntRange(min=0), metavar="K", default=0, help="As it is launched with.")
@click.option("--hot-spares", is_flag=True, help="It is launched with --spare-readiness hot.")
@click.option("--hot-standins", type=click.IntRange(min=0), metavar="N", default=0, help="As it is launched with.")
@click.option("--port", type=click.IntRange(1, 65535), metavar="PORT", help="The supervisor's.")
@click.option("--python", metavar="PYTHON", default=sys.executable, help="The ranks' interpreter.  [default: this one]")
def doctor(
    job_id: str | None, as_text: bool, hosts: tuple[str, ...], interface: str | None, nnodes: int, python: str, **plan: Any
) -> int:
    """Look for what would trouble a job: memory, limits, ports, clocks, network, GPUs, MPI, Slurm. Exit code 1 when one fails.

    It looks at this machine, at --hosts, and with --job at the nodes of a running job.
    """
    from deadpool.cli import client
    from deadpool.cli.commands import tables
    from deadpool.cli.doctor import checks, command

    unique = plan["state_size"] if plan["unique_size"] is None else plan["unique_size"]
    meant = checks.DoctorPlan(
        world_size=nnodes * plan["nproc_per_node"],
        nproc_per_node=plan["nproc_per_node"],
        nnodes=nnodes,
        spares=plan["spares"],
        replicas=plan["replicas"],
        places=Places(plan["place_replicas"]),
        state_bytes=plan["state_size"],
        unique_bytes=unique,
        checkpoints=plan["checkpoints"],
        verify_every=plan["verify_every"],
        port=plan["port"] or 0,
        hot_spares=plan["hot_spares"],
        hot_standins=plan["hot_standins"],
    )
    running = None
    if job_id is not None:
        with client.connected(find_job(job_id)) as job:
            running = job.status()
    findings = command.examine(meant, python=python, interface=interface, hosts=hosts, job=running)
    if as_text:
        click.echo(json.dumps(command.as_json(findings)))
    else:
        from rich.console import Console

        console = Console()
        tables.widen(console)
        console.print(tables.findings_view(findings))
    return 1 if command.failed(findings) else 0
