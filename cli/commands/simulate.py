"""deadpool simulate: what to expect of a cluster, a strategy and so many spares, before they are bought."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from deadpool.cli.commands.ended import last_job, parse
from deadpool.cli.commands.which_job import read_ended
from deadpool.cli.options.types import seconds, whole_number
from deadpool.cli.picture import check_picture
from deadpool.cli.simulate.cluster import DAY_S, HOUR_S, RecoveryTimes, SimulatedCluster, Strategy
from deadpool.cli.simulate.estimate import MeanOf, StrategyEstimate, estimate
from deadpool.cli.simulate.measured import MeasuredJob, measured_job
from deadpool.cli.simulate.paper import ASSUMED, STATED_RATIO, paper_rows
from deadpool.cli.simulate.plot import plot_sweep
from deadpool.cli.simulate.sweep import read_sweep
from deadpool.host.errors import ConfigError

_EXCLUDED = "exclude trains on with fewer samples a step while nodes are missing: its losses are not those of the unbroken run."


def _share(text: str | float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise click.BadParameter(f"{text}: write a share from 0 to 1")
    return value


def _rate(text: str | float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= DAY_S:
        raise click.BadParameter(f"{text}: write how many failures a day, as 0.005")
    return value


def _option(name: str, field: str, kind: Callable[[Any], Any], metavar: str, default: object, says: str) -> Any:
    return click.option(name, field, type=kind, metavar=metavar, default=default, show_default=True, help=says)


_CLUSTER = (
    _option("--nodes", "nodes", whole_number(at_least=1), "N", 1024, "Nodes that train."),
    _option("--gpus-per-node", "gpus_per_node", whole_number(at_least=1), "N", 8, "For the cost in GPU hours."),
    _option("--steps", "steps", whole_number(at_least=1), "N", 100_000, "Length of the training."),
    _option("--step-time", "step_s", seconds(), "S", 5.0, "One step, in seconds."),
    _option(
        "--failures-per-node-day", "failures_per_node_day", _rate, "RATE", 0.004, "How often a node fails, while the job runs."
    ),
    _option("--transient-share", "transient_share", _share, "SHARE", 0.0, "Of them, after which the node itself is whole."),
    _option("--rack-nodes", "rack_nodes", whole_number(), "N", 0, "Nodes that are lost together when a rack fails; 0: none."),
    _option("--failures-per-rack-day", "failures_per_rack_day", _rate, "RATE", 0.0, "How often a whole rack fails."),
    _option("--spares", "spares", whole_number(), "N", 8, "Nodes that wait. They do not fail while they do."),
    _option("--repair-time", "repair_h", seconds(), "HOURS", 24.0, "Until a lost node is back, on average (exponential)."),
    _option("--checkpoint-every", "checkpoint_every", whole_number(), "STEPS", 1_000, "Persistent checkpoints; 0: none."),
    _option(
        "--checkpoint-time", "checkpoint_s", seconds(at_least=0), "S", 30.0, "How long checkpoint-restart stands still for each."
    ),
    _option(
        "--replica-distance", "replica_distance", whole_number(at_least=1), "N", 1, "A node's replica is kept this many further."
    ),
    _option(
        "--nodes-per-replica",
        "nodes_per_replica",
        whole_number(at_least=1),
        "N",
        1,
        "Nodes that one data-parallel replica fills.",
    ),
)
_TIMES = (
    _option("--swap-time", "swap_s", seconds(), "S", 35.0, "hot-swap: from a loss to the first new step."),
    _option("--transient-time", "transient_s", seconds(), "S", 35.0, "hot-swap: the same where the node is whole."),
    _option(
        "--memory-restart-time",
        "memory_restart_s",
        seconds(),
        "S",
        90.0,
        "memory-restart: all processes anew, states from memory.",
    ),
    _option("--exclude-time", "exclude_s", seconds(), "S", 15.0, "exclude: leaving a replica out, or taking it in again."),
    _option("--restart-time", "restart_s", seconds(), "S", 150.0, "checkpoint-restart: all processes anew, state from disk."),
)


def _with(*options: Any) -> Callable[[Any], Any]:
    def added(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return added


@click.command(short_help="Expect goodput of so many nodes, failures and spares.")
@_with(*_CLUSTER, *_TIMES)
@click.option(
    "--strategy",
    "strategies",
    type=click.Choice([each.value for each in Strategy]),
    multiple=True,
    help="May be repeated.  [default: all]",
)
@click.option("--sweep", "swept", metavar="OPTION=FROM:TO", help="Vary one of the above, as spares=0:16:2 or swap-time=5,30.")
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Goodput over what is swept.")
@click.option(
    "--from",
    "events",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="EVENTS",
    help="A job's events.jsonl.",
)
@click.option("--paper", is_flag=True, help="The published comparison, from its constants; nothing else is looked at.")
@click.option(
    "--runs", type=whole_number(at_least=1, at_most=10_000), metavar="N", default=40, show_default=True, help="Of each."
)
@click.option("--seed", type=whole_number(), metavar="N", default=0, show_default=True, help="The same seed, the same figures.")
@click.option("--json", "as_text", is_flag=True, help="JSON for programs in place of a table.")
@click.pass_context
def simulate(
    context: click.Context,
    /,
    strategies: tuple[str, ...],
    swept: str | None,
    plot: Path | None,
    events: Path | None,
    paper: bool,
    runs: int,
    seed: int,
    as_text: bool,
    **numbers: Any,
) -> None:
    """Simulate a training whose nodes fail, under each strategy, and print what to expect: goodput, where the time went, spares.

    With --from, rates, the time of a step and of recoveries are those of a real job (its log folder's events.jsonl) where no
    option says otherwise.
    Means of --runs trainings with intervals of 95 %.
    """
    given = {name for name in context.params if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT}
    if paper:
        if others := sorted(given - {"paper", "as_text"}):
            raise ConfigError(f"--paper has constants of its own: leave {_spelled(context, others)} away")
        _print_paper(as_text=as_text)
        return
    if plot is not None and swept is None:
        raise ConfigError("--plot draws what --sweep varies: say what, as --sweep spares=0:16")
    if plot is not None:
        check_picture(plot)  # before anything takes its time
    if numbers["failures_per_rack_day"] and not numbers["rack_nodes"]:
        raise ConfigError("--failures-per-rack-day: how many nodes stand in a rack? Say so with --rack-nodes")
    measured = None
    if events is not None:
        said = last_job([event for line in events.read_text(errors="replace").splitlines() if (event := parse(line))])
        measured = measured_job(said, read_ended("", events.parent, events.name).summary)
        numbers |= {name: value for name, value in _taken_from(measured).items() if name not in given}
    times = RecoveryTimes(**{name: numbers.pop(name) for name in RecoveryTimes.__dataclass_fields__})
    cluster = SimulatedCluster(repair_s=numbers.pop("repair_h") * HOUR_S, **numbers)
    chosen = [each for each in Strategy if each in strategies or not strategies]
    if swept is None:
        found = [estimate(cluster, each, times, runs=runs, seed=seed) for each in chosen]
        _print(cluster, times, measured, found, runs, as_text=as_text)
        return
    sweep = read_sweep(swept)
    points: dict[Strategy, list[tuple[float, StrategyEstimate]]] = {each: [] for each in chosen}
    for value, varied, their_times in sweep.cases(cluster, times):
        for each in chosen:
            points[each].append((value, estimate(varied, each, their_times, runs=runs, seed=seed)))
    _print_sweep(sweep.option, points, as_text=as_text)
    if plot is not None:
        plot_sweep(plot, sweep.option, points, charged=sweep.option == "spares")


def _spelled(context: click.Context, names: list[str]) -> str:
    """Returns the options of these parameters as people write them."""
    return ", ".join(param.opts[0] for param in context.command.params if param.name in names)


def _taken_from(job: MeasuredJob) -> dict[str, float]:
    """Returns what the events say, by the parameter that it stands for; what they do not say is not in it."""
    taken = {
        "nodes": job.nodes,
        "failures_per_node_day": job.failures_per_node_day,
        "swap_s": job.swap_s,
        "transient_s": job.transient_s,
        "step_s": job.step_s,
    }
    if job.failures:
        taken["transient_share"] = job.transient / job.failures
    return {name: value for name, value in taken.items() if value is not None}


# ------------------------------------------------------------ what is printed


def _print(
    cluster: SimulatedCluster,
    times: RecoveryTimes,
    measured: MeasuredJob | None,
    found: list[StrategyEstimate],
    runs: int,
    *,
    as_text: bool,
) -> None:
    if as_text:
        plain: dict[str, Any] = {"cluster": asdict(cluster), "times": asdict(times), "runs": runs}
        plain |= {"measured": asdict(measured)} if measured is not None else {}
        click.echo(json.dumps(plain | {"strategies": [asdict(each) for each in found]}, indent=2))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from deadpool.cli.commands.tables import widen

    console = Console(highlight=False)
    widen(console)
    days = cluster.ideal_s / DAY_S
    console.print(
        f"{cluster.nodes} nodes of {cluster.gpus_per_node} GPUs, {cluster.spares} spares: {cluster.steps} steps of "
        f"{cluster.step_s:g} s are {days:.1f} days without a failure; {cluster.failures_per_s * DAY_S:.2f} failures a day."
    )
    if measured is not None:
        step = f", a step takes {measured.step_s:.3g} s" if measured.step_s is not None else ""
        console.print(f"Measured: {measured.failures} failures in {measured.ran_s:.0f} s on {measured.nodes} nodes{step}.")
    table = Table(box=box.SIMPLE_HEAD)
    for name in (
        "strategy",
        "goodput",
        "with spares paid",
        "days",
        "failures",
        "lost a failure",
        "steps again",
        "GPU hours lost",
    ):
        table.add_column(name, justify="left" if name == "strategy" else "right")
    for each in sorted(found, key=lambda one: -one.goodput.mean):
        table.add_row(
            each.strategy,
            _percent(each.goodput),
            _percent(each.charged),
            f"{each.wall_s.mean / DAY_S:.2f}",
            f"{each.failures.mean:.0f}",
            f"{each.lost_s.mean:.0f} ±{each.lost_s.half:.0f} s",
            f"{each.steps_again.mean:.0f}",
            f"{(each.wall_s.mean - cluster.ideal_s) / HOUR_S * cluster.nodes * cluster.gpus_per_node:,.0f}",
        )
    console.print(table)
    for each in found:
        where = ", ".join(f"{name} {share:.2%}" for name, share in each.spent.items() if share > 5e-5 and name != "productive")
        repair = f"{each.in_repair.mean:.1f} nodes in repair, {each.most_in_repair.mean:.1f} at most"
        console.print(f"{each.strategy}: {where or 'nothing lost'}; {repair}")
        if each.memory_lost.mean:
            console.print(
                f"  states in memory did not help {each.memory_lost.mean:.2f} times: node and holder were lost together"
            )
        if each.unfinished:
            console.print(f"  {each.unfinished} of {runs} trainings do not end: failures come faster than it gets on")
    if any(each.strategy is Strategy.EXCLUDE for each in found):
        console.print(_EXCLUDED)


def _print_sweep(option: str, points: dict[Strategy, list[tuple[float, StrategyEstimate]]], *, as_text: bool) -> None:
    if as_text:
        plain = [{option: value, **asdict(each)} for line in points.values() for value, each in line]
        click.echo(json.dumps({"sweep": option, "points": plain}, indent=2))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from deadpool.cli.commands.tables import widen

    table = Table(option, box=box.SIMPLE_HEAD)
    for strategy in points:
        table.add_column(strategy, justify="right")
        if option == "spares":
            table.add_column("paid", justify="right")
    for rows in zip(*points.values(), strict=True):
        cells = [f"{rows[0][0]:g}"]
        for _, each in rows:
            cells += [_percent(each.goodput)] + ([_percent(each.charged)] if option == "spares" else [])
        table.add_row(*cells)
    console = Console(highlight=False)
    widen(console)
    console.print(table)
    if Strategy.EXCLUDE in points:
        console.print(_EXCLUDED)


def _print_paper(*, as_text: bool) -> None:
    rows = paper_rows()
    if as_text:
        plain = [{**asdict(row), "ratio": row.ratio} for row in rows]
        click.echo(json.dumps({"stated_ratio": STATED_RATIO, "assumed": ASSUMED, "rows": plain}, indent=2))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from deadpool.cli.commands.tables import widen

    table = Table("step", "swap", "lost by restarts", "lost by swaps", "times less", "share", box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(
            f"{row.step_s:g} s",
            f"{row.swap_s:g} s",
            f"{row.restart_lost_s:,.0f} s",
            f"{row.swap_lost_s:,.0f} s",
            f"{row.ratio:.1f}",
            f"{1 / row.ratio:.1%}",
        )
    console = Console(highlight=False)
    widen(console)
    console.print(table)
    console.print(f"Published: {STATED_RATIO:g} times less. Not stated, assumed here:")
    for each in ASSUMED:
        console.print(f"  - {each}")


def _percent(value: MeanOf) -> str:
    return f"{value.mean:.2%} ±{value.half * 100:.2f}"
