"""Where the ranks of a recovery have gone, in words."""

from collections.abc import Sequence


def place(spare: str, moved: Sequence[int], ranks: Sequence[int], excluded: Sequence[int] = ()) -> str:
    """`spare`: the nodes that took the ranks `moved`, "" when none did. `ranks`: all that were lost, or have new processes.

    `excluded`: without which the job goes on.
    """
    back = [rank for rank in ranks if rank not in (*moved, *excluded)]
    parts = [f"spare{'s' if ',' in spare else ''} {spare} took {numbered(moved)}"] if spare else []
    parts += [f"{numbered(back)} back in place"] if back else []
    parts += [f"goes on without {numbered(excluded)} (no more the unbroken run)"] if excluded else []
    return ", ".join(parts) or "all processes kept"


def numbered(ranks: Sequence[int]) -> str:
    """Returns the ranks by their numbers."""
    return f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks))}"


def counted(number: object, thing: str) -> str:
    """Returns so many of them, in words."""
    return f"{number} {thing}{'' if number == 1 else 's'}"
