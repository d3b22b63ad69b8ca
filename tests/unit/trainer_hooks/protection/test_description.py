"""guard.describe(): a value for programs, a table for people."""

import json

from deadpool.proto.vault.holdings import Holding
from deadpool.trainer_hooks.protection.description import Description

SHARED = Holding(group="parameters", items=4, size_bytes=4000, ranks=(1, 2))
UNIQUE = Holding(group="optimizer state", items=8, size_bytes=3 << 20, ranks=())


def test_as_a_table() -> None:
    described = Description(rank=0, step=7, holdings=(SHARED, UNIQUE), nodes=("node1", "node2"))
    assert str(described).splitlines() == [
        "rank 0, step 7:",
        "                 items  bytes     held by          replicas on",
        "parameters       4      3.91 KiB  ranks 0-2",
        "optimizer state  8      3 MiB     this rank alone  node1, node2",
    ]


def test_as_values() -> None:
    described = Description(rank=0, step=7, holdings=(SHARED,), nodes=("node1",)).to_json()
    assert json.loads(json.dumps(described)) == {
        "rank": 0,
        "protected": True,
        "step": 7,
        "holdings": [{"group": "parameters", "items": 4, "size_bytes": 4000, "ranks": [1, 2]}],
        "nodes": ["node1"],
    }


def test_before_anything_is_known() -> None:
    assert str(Description(rank=2)) == "rank 2: not yet known: nothing is committed"
    assert "not protected" in str(Description(rank=0, protected=False))
