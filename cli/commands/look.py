"""What a person asks about a job, running or ended: status, events, recoveries, diagnose, trace, logs, the page's link.

grpc and rich are imported by the command that needs them.
"""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from deadpool.cli.commands.ended import EndedJob, as_json, parse
from deadpool.cli.commands.which_job import EVENTS, events_of, find, job_option, json_option, log_dir_of, read_ended
from deadpool.cli.exit_codes import say
from deadpool.cli.launcher.job_dirs import find_job, is_running
from deadpool.host.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console


_REFRESH_S = 1.0
_LOGS_POLL_S = 0.2


@click.command(short_help="How the job is, or how it ended.")
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
    if not (watch or isinstance(found, EndedJob)):
        _show(found, holdings=holdings)
        return
    from rich.console import Console

    from deadpool.cli.commands import tables

    console = Console()
    if isinstance(found, EndedJob):
        tables.widen(console)
        console.print(tables.ended_view(found))
    else:
        _watch(found, console, holdings=holdings)


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


def _show(folder: Path, *, holdings: bool) -> None:
    """Shows it once. What is needed for that is imported while the supervisor makes its answer."""
    from deadpool.cli import client

    with client.connected(folder) as job:
        answer = job.ask_status()
        from rich.console import Console

        from deadpool.cli.commands import tables

        console = Console()
        tables.widen(console)
        status = answer()
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


@click.command(short_help="The link to the job's page.")
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


@click.command(short_help="Every change, one a line.")
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
        for line in Path(found.log_dir, EVENTS).read_text(errors="replace").splitlines():
            show(line)
        return
    from deadpool.cli import client

    with client.connected(found, to_the_end=follow) as job:
        for line in job.events(follow=follow):
            show(line)


@click.command(short_help="Every recovery, with its phases.")
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


@click.command(short_help="Who waits for whom, and where.")
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


@click.command(short_help="The recoveries as a trace for Perfetto.")
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


@click.command(short_help="What a rank has printed.")
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
