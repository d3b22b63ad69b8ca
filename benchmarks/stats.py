"""Sums up repeated measurements: medians and spread, never a mean that one bad run decides."""

import math
import statistics
from collections.abc import Sequence


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the value below which `share` (0..1) of the values lie, between neighbours in a straight line."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below, above = math.floor(place), math.ceil(place)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def summarize(values: Sequence[float]) -> dict[str, float | int | None]:
    """Returns count, median, min, max and interquartile range; None for what no value was measured for."""
    if not values:
        return {"count": 0, "median": None, "min": None, "max": None, "iqr": None}
    return {
        "count": len(values),
        "median": round(statistics.median(values), 4),
        "min": round(min(values), 4),
        "max": round(max(values), 4),
        "iqr": round(quantile(values, 0.75) - quantile(values, 0.25), 4),
    }


def rotated(items: Sequence[str], turn: int) -> list[str]:
    """Returns the items beginning at another one each turn, and backwards every other turn: no system always comes first."""
    at = turn % len(items)
    order = [*items[at:], *items[:at]]
    return order[::-1] if turn % 2 else order
