"""What an agent says that it needs is what it comes to need."""

from dataclasses import replace
from itertools import product
from typing import Any

from deadpool.agent.needs import nodes_kept, open_files
from deadpool.proto.config import JobConfig, Places, Transport
from deadpool.supervisor.model.placing import place_replicas

CONFIG = JobConfig(job_id="job", nnodes=4, nproc_per_node=8, command=("train.py",), python="python3", log_dir="/logs")


def test_no_node_keeps_the_replicas_of_more_others_than_it_counts_with() -> None:
    for nnodes, spares, replicas, places in product(range(1, 7), range(5), range(4), Places):
        members, others = [f"m{seat}" for seat in range(nnodes)], [f"s{number}" for number in range(spares)]
        holders = place_replicas(members, spares=others, replicas=replicas, places=places).holders
        kept = [sum(node in each for each in holders.values()) for node in (*members, *others)]
        case = f"{nnodes} nodes, {spares} spares, {replicas} replicas, {places}"
        assert max(kept) <= nodes_kept(nnodes=nnodes, spares=spares, replicas=replicas, places=places) <= nnodes, case


def test_each_connection_that_carries_replicas_is_a_file() -> None:
    def more(**fields: Any) -> int:
        return open_files(replace(CONFIG, **fields)) - open_files(CONFIG)

    assert more(replica_connections=1) == 0
    assert more(replica_connections=4) == 8 * 3
    assert more(replica_connections=4, replicas=2) == 8 * 7
    assert more(replica_connections=4, spares=1, place_replicas=Places.SPARES) == 8 * 15
    assert more(replica_connections=4, h2h=Transport.OFF) == 0
