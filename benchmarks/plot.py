"""Draws what benchmarks/recovery.py and strategies.py have measured. Needs matplotlib (the extra `plot`)."""

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


def plot_strategies(report: dict[str, Any], image: Path) -> None:
    """Writes what a failure costs under each strategy, and which share of the steps failures cost, measured and simulated."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    strategies = report["strategies"]
    rcParams["svg.fonttype"] = "none"  # text stays text: a small file
    figure = Figure(figsize=(11, 4), layout="constrained")
    bars, lines = figure.subplots(1, 2)
    bars.set(xlabel="seconds lost by a failure (pale: what excluded ranks have not computed)")
    for row, (name, found) in enumerate(strategies.items()):
        lost, step_s = found["time_lost_s"], found["step_s"]
        (bar,) = bars.barh(row, lost["median"], xerr=[[lost["median"] - lost["min"]], [lost["max"] - lost["median"]]], capsize=3)
        bars.barh(row, found["slowed_s"], left=lost["median"], color=bar.get_facecolor(), alpha=0.4)
        end_s = max(lost["max"], lost["median"] + found["slowed_s"])
        bars.text(end_s, row, f"  {lost['median'] + found['slowed_s']:.2f} s, {_losses(found)}", va="center", fontsize=8)
        rates = found["steps_per_hour"]
        at = [float(rate.split()[0]) for rate in rates]
        missing = {how: [100 * (1 - each[how] * step_s / 3600) for each in rates.values()] for how in ("measured", "simulated")}
        (line,) = lines.loglog(at, missing["measured"], "o-", label=name)
        lines.loglog(at, missing["simulated"], "x--", color=line.get_color())
    bars.set_yticks(range(len(strategies)), list(strategies))
    bars.margins(x=0.6)
    lines.set(xlabel="failures an hour", ylabel="steps that they cost, %", title="o measured   x simulated")
    lines.title.set_fontsize(9)
    lines.minorticks_off()
    lines.set_xticks(at, [f"{rate:g}" for rate in at])
    lines.set_yticks([0.01, 0.1, 1.0], ["0.01", "0.1", "1"])
    lines.legend(fontsize=8)
    lines.grid(alpha=0.3)
    figure.savefig(image, metadata={"Date": None} if image.suffix == ".svg" else None)


def _losses(found: dict[str, Any]) -> str:
    """Returns how far the losses are from the unbroken run's, in words."""
    same, runs = (int(word) for word in found["losses"].split(" runs")[0].split(" of "))
    if same == runs:
        return "losses the same to the bit"
    apart = found["loss_apart"]["max"]
    return f"losses up to {apart:.2g} apart" if apart >= 0.001 else "losses not to the bit"
