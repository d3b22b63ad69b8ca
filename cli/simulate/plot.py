"""A sweep as a picture."""

from pathlib import Path

from deadpool.cli.picture import new_figure, write_picture
from deadpool.cli.simulate.cluster import Strategy
from deadpool.cli.simulate.estimate import StrategyEstimate


def plot_sweep(path: Path, option: str, points: dict[Strategy, list[tuple[float, StrategyEstimate]]], *, charged: bool) -> None:
    """Writes goodput over the value swept, a line with its 95 % interval for each strategy; the name's ending says the format.

    ConfigError without matplotlib, and for a file that cannot be written.
    """
    figure = new_figure(8, 5)
    axes = figure.add_subplot(xlabel=option, ylabel="goodput, spares charged" if charged else "goodput")
    for strategy, line in points.items():
        values = [value for value, _ in line]
        means = [each.charged if charged else each.goodput for _, each in line]
        axes.plot(values, [each.mean for each in means], marker=".", label=strategy)
        axes.fill_between(values, [each.mean - each.half for each in means], [each.mean + each.half for each in means], alpha=0.2)
    axes.grid(alpha=0.3)
    axes.legend()
    write_picture(figure, path)
