"""Files that matplotlib draws: what is needed for one is asked before anything takes its time. matplotlib is needed only here."""

from pathlib import Path
from typing import Any

from deadpool.host.errors import ConfigError


def check_picture(path: Path) -> None:
    """Raises ConfigError when no picture can be written there: without matplotlib, a folder, or a known ending of the name."""
    endings = new_figure(1, 1).canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in endings:
        raise ConfigError(f"--plot {path}: its name must end in one of {', '.join(f'.{each}' for each in sorted(endings))}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no folder {path.absolute().parent}")


def new_figure(width_in: float, height_in: float) -> Any:
    """Returns a matplotlib Figure, in inches. ConfigError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("--plot needs matplotlib: pip install 'deadpool-train[plot]'") from None
    return Figure(figsize=(width_in, height_in), layout="constrained")


def write_picture(figure: Any, path: Path) -> None:
    """The name's ending says the format. ConfigError where the file cannot be written."""
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plot {path}: {error}") from error
