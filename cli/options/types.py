"""Option values of ours that are more than a word: text in, value out; click says which option was wrong."""

import re

import click


def host_names(text: str | tuple[str, ...]) -> tuple[str, ...]:
    """Returns the hosts of `a,b,c`, each once."""
    if isinstance(text, tuple):
        return text
    names = tuple(each.strip() for each in text.split(","))
    if not all(re.fullmatch(r"[A-Za-z0-9_@.:%\[\]-]+", name) and not name.startswith("-") for name in names):
        raise click.BadParameter(f"{text!r}: write hosts as a,b,c")
    if len(set(names)) < len(names):
        raise click.BadParameter(f"{text!r} names a host twice")
    return names


def size(text: str | int) -> int:
    """Returns the bytes of `500M` or `12G`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", str(text))
    if found is None:
        raise click.BadParameter(f"{text!r} is not a size: write it as 500M or 12G")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2] or " "))
