"""deadpool: what a person asks of a running job. grpc and rich are imported by the command that needs them."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deadpool.cli.commands.ended import EndedJob, as_json, ended_job, last_job, parse
from deadpool.cli.commands.lazy import Elsewhere, LazyGroup
from deadpool.cli.commands.slurm_scripts import SCRIPTS, script_text
from deadpool.cli.exit_codes import guarded, say
from deadpool.cli.launcher.job_dirs import NotRunningError, find_job, is_running
from deadpool.cli.launcher.past_jobs import find_logs
from deadpool.cli.options.types import host_names, size
from deadpool.host.errors import ConfigError, DeadpoolError
from deadpool.host.version import PACKAGE
from deadpool.proto.faults import FAULTS, Target
from deadpool.proto.step import NO_STEP

if TYPE_CHECKING:
    from rich.console import Console

    from deadpool.cli.client import Client

_REFRESH_S = 1.0
_POLL_S = 0.02
_LOGS_POLL_S = 0.2
_STOP_TIMEOUT_S = 120.0

job_option = click.option("--job", "job_id", metavar="JOB", help="Which job, when several are running.")
json_option = click.option("--json", "as_text", is_flag=True, help="JSON for programs in place of a table.")


def deadpool() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 done, 1 the job does not answer, 2 usage, or no such job."""
    return guarded(lambda: commands.main(list(arguments), prog_name="deadpool", standalone_mode=False))


_ELSEWHERE = {
    "drill": Elsewhere("deadpool.cli.commands.drill", "drill", "Prove that a script recovers bit for bit."),
    "simulate": Elsewhere("deadpool.cli.commands.simulate", "simulate", "Expect goodput of so many nodes, failures and spares."),
}


@click.group(cls=LazyGroup, elsewhere=_ELSEWHERE, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=PACKAGE)
def commands() -> None:
    """Drill a script; look at a running job, free a node, inject a failure, stop it. Jobs are started with deadpool-launch."""


def find(job: str | None) -> Path | EndedJob:
    """Returns the folder of a running job, or what the logs of one that has ended say; ConfigError when there is neither."""
    try:
        return find_job(job)
    except NotRunningError:
        found = find_logs(job)
        if found is None:
            raise
        return read_ended(*found)


def read_ended(job_id: str, log_dir: Path) -> EndedJob:
    summary = log_dir / "summary.json"
    written = summary.read_text(errors="replace") if summary.is_file() else ""
    return ended_job(job_id, str(log_dir), (log_dir / "events.jsonl").read_text(errors="replace").splitlines(), written)


def log_dir_of(folder: Path) -> Path:
    """Returns the log folder of a running job."""
    from deadpool.proto.config import from_json

    return Path(from_json((folder / "job.json").read_text()).log_dir)


@commands.command(short_help="How the job is, or how it ended.")
@job_option
@json_option
@click.option("--watch", is_flag=True, help="Keep showing it, until q or the job's end; d, l and i drain, show logs, inject.")
@click.option("--state", "holdings", is_flag=True, help="And what of the training state is unique, and where its copies are.")
def status(job_id: str | None, as_text: bool, watch: bool, holdings: bool) -> None:
    """Show phase, generation, step, nodes, ranks, spares and the last recoveries; of a job that has ended how it ended."""
    found = find(job_id)
    if holdings and isinstance(found, EndedJob):
        raise ConfigError(f"job {found.job_id} has ended: nothing of its state is in memory any more")
    if as_text:
        _status_as_json(found, watch=watch, holdings=holdings)
        return
    from rich.console import Console

    from deadpool.cli.commands import tables

    console = Console()
    if not watch:
        tables.widen(console)
    if isinstance(found, EndedJob):
        console.print(tables.ended_view(found))
    elif watch:
        _watch(found, console, holdings=holdings)
    else:
        from deadpool.cli import client

        with client.connected(found) as job:
            _show(job, console, holdings=holdings)


def _status_as_json(found: Path | EndedJob, *, watch: bool, holdings: bool) -> None:
    if isinstance(found, EndedJob):
        click.echo(json.dumps(as_json(found)))
        return
    from deadpool.cli import client
    from deadpool.cli.holdings import as_plain
    from deadpool.proto.convert import status_as_plain

    with client.connected(found, to_the_end=watch) as job:
        while True:
            status = job.status()
            shown = status_as_plain(status)
            if holdings:
                shown["state"] = as_plain(job.holdings(status))
            click.echo(json.dumps(shown))
            if not watch:
                return
            time.sleep(_REFRESH_S)


def _show(job: "Client", console: "Console", *, holdings: bool) -> None:
    from deadpool.cli.commands import tables

    status = job.status()
    tables.show_status(status, console)
    if holdings:
        console.print(tables.holdings_view(job.holdings(status)))


def _watch(folder: Path, console: "Console", *, holdings: bool) -> None:
    """Shows the job again and again; the last thing that is seen is how it ended."""
    from deadpool.cli.commands import tables
    from deadpool.cli.commands.logs import RankOutput
    from deadpool.cli.live.watch import watch

    log_dir, name = log_dir_of(folder), folder.name
    watch(
        folder,
        lambda rank: RankOutput(log_dir, rank),
        console,
        lambda: tables.ended_view(read_ended(name, log_dir)),
        (lambda job, status: tables.holdings_view(job.holdings(status))) if holdings else None,
    )


@commands.command(short_help="The link to the job's page.")
@job_option
def dashboard(job_id: str | None) -> None:
    """Print the link to the page of a job that was launched with --dashboard. Whoever has it can look at the job, and no more."""
    from deadpool.cli.launcher.job_dirs import read_endpoint
    from deadpool.proto.secret import read_private, view_key

    folder = find_job(job_id)
    address = read_endpoint(folder).dashboard
    if not address:
        raise ConfigError(f"job {folder.name} has no page; launch it with --dashboard")
    click.echo(f"{address}/#key={view_key(read_private(folder / 'token'))}")


@commands.command(short_help="Every change, one a line.")
@job_option
@json_option
@click.option("--follow", is_flag=True, help="Go on with the events to come, until the job's end.")
def events(job_id: str | None, as_text: bool, follow: bool) -> None:
    """Show every change so far, one a line; also of a job that has ended."""
    found = find(job_id)
    from rich.console import Console

    from deadpool.cli.commands import tables

    console = Console(soft_wrap=True)

    def show(line: str) -> None:
        if as_text:
            click.echo(line)
        elif event := parse(line):
            console.print(tables.event_line(event))

    if isinstance(found, EndedJob):
        for line in Path(found.log_dir, "events.jsonl").read_text(errors="replace").splitlines():
            show(line)
        return
    from deadpool.cli import client

    with client.connected(found, to_the_end=follow) as job:
        for line in job.events(follow=follow):
            show(line)


def events_of(found: Path | EndedJob) -> tuple[str, Path, list[dict[str, Any]]]:
    """Returns the job's name, its log folder, and its events so far: those of the last job where several have logged there."""
    if isinstance(found, EndedJob):
        lines = Path(found.log_dir, "events.jsonl").read_text(errors="replace").splitlines()
        return found.job_id, Path(found.log_dir), last_job([event for line in lines if (event := parse(line))])
    from deadpool.cli import client

    with client.connected(found) as job:
        return found.name, log_dir_of(found), [json.loads(line) for line in job.events(follow=False)]


@commands.command(short_help="Every recovery, with its phases.")
@job_option
@json_option
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="And as a picture: FILE.png, .svg.")
def recoveries(job_id: str | None, as_text: bool, plot: Path | None) -> None:
    """Show every recovery of a job, running or ended: what failed, what became of it, and how long each phase took."""
    from deadpool.cli.commands.recoveries import past_recoveries, recoveries_json, recoveries_table
    from deadpool.cli.picture import check_picture

    if plot is not None:
        check_picture(plot)
    name, _, said = events_of(find(job_id))
    found = past_recoveries(said)
    if plot is not None:
        from deadpool.cli.commands.recoveries_plot import plot_recoveries

        plot_recoveries(plot, name, found)
    if as_text:
        click.echo(json.dumps(recoveries_json(found)))
        return
    if not found:
        say(f"job {name}: no recovery so far")
        return
    from rich.console import Console

    from deadpool.cli.commands.tables import widen

    console = Console(highlight=False)
    widen(console)
    console.print(recoveries_table(found))


@commands.command(short_help="Who waits for whom, and where.")
@job_option
@json_option
def diagnose(job_id: str | None, as_text: bool) -> None:
    """Ask all ranks which call of which group they are in, and where their scripts are; of a job that has ended, what failed.

    Nothing is done about it, and the ranks go on. Their stacks are kept beside their logs.
    """
    from deadpool.cli.commands.diagnose import diagnosis_lines, past_lines

    found = find(job_id)
    if isinstance(found, EndedJob):
        _, _, said = events_of(found)
        click.echo(json.dumps(past_lines(said)) if as_text else "\n".join(past_lines(said)))
        return
    from deadpool.cli import client
    from deadpool.cli.commands.stacks import read_stacks

    with client.connected(found) as job:
        before = job.status()
        diagnosis = job.diagnose()
        after = job.status()
    stacks = read_stacks(diagnosis.ranks)
    if as_text:
        from deadpool.proto.convert import to_plain

        click.echo(json.dumps(to_plain(diagnosis) | {"stacks": stacks, "step_before": before.step, "step_after": after.step}))
        return
    nodes = {rank.rank: node.node_id for node in after.nodes for rank in node.ranks}
    click.echo("\n".join(diagnosis_lines(diagnosis, nodes, stacks, moved=(before.step, after.step))))


@commands.command(short_help="The recoveries as a trace for Perfetto.")
@click.argument("file", metavar="FILE.json", type=click.Path(dir_okay=False, path_type=Path))
@job_option
def trace(file: Path, job_id: str | None) -> None:
    """Write what supervisor and ranks did in every recovery, on all nodes, clocks aligned: for ui.perfetto.dev, chrome://tracing."""
    from deadpool.cli.commands.trace import chrome_trace, read_moments

    name, log_dir, said = events_of(find(job_id))
    moments = read_moments(log_dir)
    try:
        file.write_text(json.dumps(chrome_trace(said, moments)))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    absent = sorted({event["node"] for event in said if event.get("event") == "node_joined"} - moments.keys())
    missing = f"; without {', '.join(absent)}: their log folders are not here" if absent else ""
    say(f"job {name}: {file}, of {len(moments)} nodes{missing}")


@commands.command(short_help="Completion of commands and options for a shell.")
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print what makes SHELL complete deadpool and deadpool-launch: eval "$(deadpool completion bash)"."""
    from deadpool.cli.commands.completion import completion_script
    from deadpool.cli.launch import launch

    click.echo(completion_script(shell, {"deadpool": commands, "deadpool-launch": launch}), nl=False)


@commands.command(short_help="What a rank has printed.")
@click.argument("rank", metavar="RANK", type=click.IntRange(min=0))
@job_option
@click.option("-f", "--follow", is_flag=True, help="Go on with the lines to come, until the job's end.")
@click.option(
    "-n", "--lines", type=click.IntRange(min=0), metavar="N", default=100, show_default=True, help="The last so many; 0: all."
)
@click.option(
    "--log-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Of the job whose logs these are.",
)
def logs(rank: int, job_id: str | None, follow: bool, lines: int, log_dir: Path | None) -> None:
    """Show what RANK has printed, on whichever node it lived, in all generations; also of a job that has ended."""
    from deadpool.cli.commands.logs import RankOutput, last_lines

    folder = None
    if log_dir is None:
        found = find(job_id)
        folder = None if isinstance(found, EndedJob) else found
        log_dir = Path(found.log_dir) if isinstance(found, EndedJob) else log_dir_of(found)
    output = RankOutput(log_dir, rank)
    if not output.files() and not (follow and folder is not None):
        raise ConfigError(f"rank {rank}: no log in {log_dir}")
    show = sys.stdout.buffer
    printed = output.new()
    if not printed and not follow:
        say(f"rank {rank} has printed nothing{'' if folder is None else ' so far'}")
    show.write(last_lines(printed, lines))
    show.flush()
    while follow and folder is not None:
        running = is_running(folder)
        show.write(output.new())
        show.flush()
        if not running:
            return
        time.sleep(_LOGS_POLL_S)


_KINDS = "\n".join(f"  {kind:<22}{fault.does}" for kind, fault in FAULTS.items())


@commands.command(epilog=f"\b\nKinds:\n{_KINDS}", short_help="Inject a failure, now or in a step.")
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


@commands.command(short_help="Move a node's ranks to a spare.")
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
        say(drain_node(job, node, reason, pause=lambda: time.sleep(_LOGS_POLL_S)))


@commands.command(short_help="Look for what would trouble a job.")
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
        replicas=plan["replicas"],
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


@commands.command(short_help="Print a script for Slurm.")
@click.argument("name", metavar="[train|interactive|add-spare]", type=click.Choice(tuple(SCRIPTS)), default="train")
def slurm_script(name: str) -> None:
    """Print a script for Slurm: a training job, the same by hand, or spares for a running job."""
    click.echo(script_text(name), nl=False)


@commands.command(short_help="End the job, and wait until it is gone.")
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


if __name__ == "__main__":
    deadpool()
