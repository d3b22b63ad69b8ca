"""Draws what benchmarks/recovery.py has measured: where the time of a recovery goes. Needs matplotlib (the extra `plot`)."""

from pathlib import Path
from typing import Any

PHASES = ("detect", "decide", "quiesce", "plan", "reform", "restore", "first_step")
COLOURS = ("#888888", "#bbbbbb", "#d95f02", "#e7c9a9", "#7570b3", "#1b9e77", "#a6d854")


def plot_recoveries(report: dict[str, Any], image: Path) -> None:
    """Writes a bar for each of our systems, made of the medians of its phases; the image's ending says the format."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    systems = {name: found for name, found in report["systems"].items() if found.get("phases_s") and found["total_s"]["count"]}
    order = sorted(systems, key=lambda name: -systems[name]["total_s"]["median"])
    rcParams["svg.fonttype"] = "none"  # text stays text: a small file
    figure = Figure(figsize=(8, 0.5 * len(order) + 1.4), layout="constrained")
    axes = figure.add_subplot(xlabel="seconds in which no new step is made (medians)")
    left = [0.0] * len(order)
    for phase, colour in zip(PHASES, COLOURS, strict=True):
        lengths = [systems[name]["phases_s"][phase]["median"] for name in order]
        if max(lengths, default=0.0) > 0.004:
            axes.barh(range(len(order)), lengths, left=left, color=colour, label=phase.replace("_", " "))
        left = [begin + length for begin, length in zip(left, lengths, strict=True)]
    axes.set_yticks(range(len(order)), [name.removeprefix("deadpool-") for name in order])
    for row, name in enumerate(order):
        axes.text(left[row], row, f" {systems[name]['total_s']['median']:.2f} s", va="center", fontsize=9)
    axes.margins(x=0.1)
    axes.legend(ncols=4, fontsize=8, loc="upper right", frameon=False)
    figure.savefig(image, metadata={"Date": None} if image.suffix == ".svg" else None)
