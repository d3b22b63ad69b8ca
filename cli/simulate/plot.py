"""A sweep as a picture. matplotlib is needed only here."""

from pathlib import Path

from deadpool.cli.simulate.cluster import Strategy
from deadpool.cli.simulate.estimate import StrategyEstimate
from deadpool.host.errors import ConfigError


def plot_sweep(path: Path, option: str, points: dict[Strategy, list[tuple[float, StrategyEstimate]]], *, charged: bool) -> None:
    """Writes goodput over the value swept, a line with its 95 % interval for each strategy; the name's ending says the format.

    ConfigError without matplotlib, and for a file that cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("--plot needs matplotlib: pip install 'deadpool-train[plot]'") from None
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot(xlabel=option, ylabel="goodput, spares charged" if charged else "goodput")
    for strategy, line in points.items():
        values = [value for value, _ in line]
        means = [each.charged if charged else each.goodput for _, each in line]
        axes.plot(values, [each.mean for each in means], marker=".", label=strategy)
        axes.fill_between(values, [each.mean - each.half for each in means], [each.mean + each.half for each in means], alpha=0.2)
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plot {path}: {error}") from error
