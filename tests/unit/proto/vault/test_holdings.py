"""What a state holds, in rows: every byte in one of them, and it survives the wire."""

import pytest

from deadpool.proto.messages import SlotKind
from deadpool.proto.vault.holdings import Holding, SlotHoldings, from_json, holdings, ranks_text, to_json
from deadpool.proto.vault.layout import Item, Layout

PEERS = {"model/m.a": (1, 2), "model/m.b": (1, 2), "optimizer/o/m.a/step": (1, 2, 3), "optimizer/o/m.a/exp_avg": ()}


def layout() -> Layout:
    keys = ["optimizer/o/m.a/exp_avg", "optimizer/o/m.a/step", "buffer/m.mean", "model/m.b", "model/m.a", "other/x"]
    items = [Item(key=key, offset=0, nbytes=index + 1, dtype="uint8", shape=(index + 1,)) for index, key in enumerate(keys)]
    return Layout.place(items).with_peers(PEERS)


def test_rows_of_a_layout() -> None:
    assert holdings(layout(), 100) == (
        Holding(group="parameters", items=2, size_bytes=9, ranks=(1, 2)),
        Holding(group="buffers", items=1, size_bytes=3, ranks=()),
        Holding(group="optimizer state", items=1, size_bytes=1, ranks=()),
        Holding(group="optimizer state", items=1, size_bytes=2, ranks=(1, 2, 3)),
        Holding(group="extras and metadata", items=1, size_bytes=100, ranks=()),
        Holding(group="other", items=1, size_bytes=6, ranks=()),
    )


def test_they_survive_the_wire() -> None:
    slot = SlotHoldings(kind=SlotKind.REPLICA, rank=3, generation=2, step=7, holdings=holdings(layout(), 100))
    assert from_json(to_json([slot, slot])) == (slot, slot)


@pytest.mark.parametrize(("ranks", "text"), [((3, 0, 1, 2), "0-3"), ((0, 2, 3, 6), "0, 2-3, 6"), ((5,), "5")])
def test_ranks(ranks: tuple[int, ...], text: str) -> None:
    assert ranks_text(ranks) == text
