"""Which bytes of a state go to a holder that has acknowledged another one."""

from itertools import islice
from pathlib import Path

from deadpool.proto.messages import NO_STEP
from deadpool.proto.vault.layout import Item, Layout
from deadpool.proto.vault.slots import StateId
from deadpool.trainer_hooks.protection.copy_groups import groups_of
from deadpool.trainer_hooks.protection.outgoing import OutgoingState, Stamp, Sums

KIB = 1 << 10
SIZES = {"a": 64, "b": 9, "c": 64, "d": 64, "e": 9, "f": 9, "g": 9}  # KiB; in one group


def test_what_is_the_same_travels_only_where_a_piece_of_its_own_would_cost_more() -> None:
    items = [Item(key=key, offset=0, nbytes=size * KIB, dtype="uint8", shape=(size * KIB,)) for key, size in SIZES.items()]
    layout = Layout.place(items)
    data = memoryview(bytearray(layout.data_bytes))
    stamp = Stamp(rank=0, state=StateId(generation=1, step=2), keep_step=NO_STEP, sender_generation=1)
    outgoing = OutgoingState(stamp, layout, meta_bytes=0, path=Path("slot"), data=data, data_offset=0)
    (group,) = groups_of(layout)
    changed = {"a", "c", "e"}
    outgoing.landed(group, [2 if key in changed else 1 for key in SIZES])
    parts = list(islice(outgoing.parts(Sums(layout=layout, items=[1] * len(SIZES))), 2))
    offsets = {item.key: item.offset for item in layout.items}
    assert [(each.to_offset, len(each.view)) for each in parts] == [(0, (64 + 9 + 64) * KIB), (offsets["e"], 9 * KIB)]
    assert outgoing.whole(None) is None  # it is not sealed yet
