"""What a rank holds of the training state, for people: what other ranks hold as well, what is unique, where its replicas are."""

from dataclasses import asdict, dataclass
from typing import Any

from deadpool.host.sizes import size_text
from deadpool.proto.step import NO_STEP
from deadpool.proto.vault.holdings import Holding, ranks_text

_HEAD = ("", "items", "bytes", "held by", "replicas on")


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What guard.describe() returns; print() shows it as a table.

    `step`: the newest commit that this rank knows of; NO_STEP: there is none yet, or this run is not protected (`protected`).
    `nodes`: that hold replicas of what is unique.
    """

    rank: int
    protected: bool = True
    step: int = NO_STEP
    holdings: tuple[Holding, ...] = ()
    nodes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns it as values that json.dumps takes."""
        return asdict(self)

    def __str__(self) -> str:
        if not self.protected:
            return f"rank {self.rank}: not protected: this run was not started by deadpool-launch"
        if self.step == NO_STEP:
            return f"rank {self.rank}: not yet known: nothing is committed"
        rows = [_HEAD, *map(self._row, self.holdings)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([f"rank {self.rank}, step {self.step}:", *lines])

    def _row(self, each: Holding) -> tuple[str, ...]:
        together = f"ranks {ranks_text((self.rank, *each.ranks))}" if each.ranks else "this rank alone"
        replicas = "" if each.ranks else ", ".join(self.nodes) or "none"
        return each.group, str(each.items), size_text(each.size_bytes), together, replicas
