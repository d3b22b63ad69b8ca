"""The recoveries of a job as a picture."""

from collections.abc import Sequence
from pathlib import Path

from deadpool.cli.commands.recoveries import PastRecovery
from deadpool.cli.live.marks import PHASES
from deadpool.cli.picture import new_figure, write_picture

_COLOURS = ("#b48ead", "#9aa0a6", "#ebcb8b", "#6b7280", "#88c0d0", "#5e81ac", "#a3be8c")


def plot_recoveries(path: Path, job_id: str, found: Sequence[PastRecovery]) -> None:
    """Writes a bar of phases for each recovery, at the time of the job when it ended; the name's ending says the format.

    ConfigError without matplotlib, and for a file that cannot be written.
    """
    figure = new_figure(9, 5)
    axes = figure.add_subplot(title=job_id, xlabel="the generation that each ended with, and when in the job", ylabel="seconds")
    places = range(len(found))
    bottom = [0.0] * len(found)
    for phase, colour in zip(PHASES, _COLOURS, strict=True):
        heights = [getattr(each.phases_s, phase) for each in found]
        axes.bar(places, heights, bottom=bottom, color=colour, label=phase.replace("_", " "))
        bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
    axes.set_xticks(places, [f"g{each.generation}, {each.ended_s:.1f} s\n{each.failure_class}" for each in found])
    axes.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside right upper")  # beside the bars, not on them
    write_picture(figure, path)
