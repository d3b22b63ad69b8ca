"""What an agent writes down of starts and recoveries, for traces."""

import json
from pathlib import Path

from deadpool.agent.logs.moments import Moments
from deadpool.proto import messages


def test_each_moment_of_each_rank_is_a_line(tmp_path: Path) -> None:
    times = iter((10.0, 10.5, 11.0))
    moments = Moments(tmp_path, wall_s=lambda: next(times))
    moments.ordered(messages.Quiesce(generation=2, reason="x"), (2, 3))
    moments.said(messages.RankReformed(generation=2, rank=3))
    moments.said(messages.Heartbeat(generation=2))
    moments.said(messages.RankFinished(generation=2, rank=3, step=9))
    placement = messages.Placement(rank=5, local_rank=0, node_id="n", node_rank=0)
    assign = messages.Assign(
        generation=3, world_size=8, placements=(placement,), hint_step=1, master_node_count=1, restart_count=0
    )
    moments.ordered(assign, ())
    moments.ordered(messages.OpenStore(generation=3), (2,))
    moments.close()
    lines = [json.loads(line) for line in (tmp_path / "moments.jsonl").read_text().splitlines()]
    assert [(line["wall_s"], line["generation"], line["rank"], line["moment"]) for line in lines] == [
        (10.0, 2, 2, "Quiesce"), (10.0, 2, 3, "Quiesce"), (10.5, 2, 3, "RankReformed"), (11.0, 3, 5, "Assign"),
    ]  # fmt: skip


def test_where_nothing_can_be_written_the_job_goes_on(tmp_path: Path) -> None:
    moments = Moments(tmp_path / "gone")
    moments.said(messages.RankReformed(generation=2, rank=3))
    moments.close()
