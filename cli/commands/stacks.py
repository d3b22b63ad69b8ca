"""The stacks that agents have saved, where this machine can read them."""

from collections.abc import Iterable
from pathlib import Path

from deadpool.proto.messages import RankCalls


def read_stacks(ranks: Iterable[RankCalls]) -> dict[int, str]:
    """Returns rank -> what its process has written; without those whose node keeps its logs elsewhere."""
    found = {}
    for each in ranks:
        path = Path(each.stacks)
        if each.stacks and path.is_file():
            found[each.rank] = path.read_text(errors="replace")
    return found
