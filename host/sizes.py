"""Sizes for people to read."""


def size_text(size_bytes: int) -> str:
    """Returns the size with three digits or four, as 312 B or 1.41 GiB."""
    value, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1000 and units[1:]:
        value /= 1024
        units.pop(0)
    return f"{size_bytes} B" if units[0] == "B" else f"{value:.3g} {units[0]}"
