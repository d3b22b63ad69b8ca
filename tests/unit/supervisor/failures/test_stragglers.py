"""Stragglers: who takes longer for its own part of a step, again and again; and what the job does about it."""

from collections.abc import Mapping

import pytest
from supervising import Scene

from deadpool.proto.messages import Heartbeat, RankProgress
from deadpool.supervisor.failures.stragglers import PaceVerdict, StragglerWatch
from deadpool.supervisor.model.membership import NodeRole

STEP_S = 0.2  # of all ranks: who is quicker waits for the others


class Ranks:
    """Ranks that make steps; the watch hears of them and is asked once a second."""

    def __init__(self, world_size: int = 4) -> None:
        self.watch = StragglerWatch()
        self.nodes = {rank: f"node{rank // 2}" for rank in range(world_size)}
        self.generation, self.now_s, self.steps = 1, 0.0, 0

    def train(self, seconds: int, own_s: Mapping[int, float], *, known: bool = True) -> list[PaceVerdict]:
        """`own_s`: a rank's own time of a step; 0.1 for the others."""
        found = []
        for _ in range(seconds):
            self.now_s += 1.0
            self.steps += 5
            progress = tuple(
                RankProgress(
                    rank=rank, pid=self.generation, step=self.steps, commit_step=0, steps_done=self.steps, exposed_stall_s=0.0,
                    stepped_s=self.steps * STEP_S,
                    waited_s=self.waited(rank, own_s.get(rank, 0.1)) if known else -1e-9,
                )
                for rank in self.nodes
            )  # fmt: skip
            self.watch.heard(Heartbeat(generation=self.generation, ranks=progress), now_s=self.now_s)
            if self.watch.due(now_s=self.now_s):
                found += self.watch.check(self.nodes, generation=self.generation, now_s=self.now_s)
        return found

    def waited(self, rank: int, own_s: float) -> float:
        """Returns the sum so far; it grows by what each step's own time leaves."""
        self._waited = getattr(self, "_waited", dict.fromkeys(self.nodes, 0.0))
        self._waited[rank] += 5 * (STEP_S - own_s)
        return float(self._waited[rank])

    def replaced(self, rank: int, node_id: str) -> None:
        self.generation += 1
        self.nodes[rank] = node_id


def test_a_rank_that_is_slow_for_long_is_named_once_and_then_it_is_over() -> None:
    ranks = Ranks()
    assert ranks.train(20, {}) == []
    (named,) = ranks.train(30, {3: 0.18})
    assert (named.rank, named.node_id, named.over) == (3, "node1", False)
    assert named.own_s == pytest.approx(0.18, rel=0.1)
    assert named.median_s == pytest.approx(0.1)
    (over,) = ranks.train(20, {})
    assert (over.rank, over.over) == (3, True)


def test_a_slow_moment_is_none() -> None:
    ranks = Ranks()
    for _ in range(5):
        assert ranks.train(5, {2: 0.2}) == []
        assert ranks.train(15, {}) == []


def test_ranks_that_differ_anyhow_have_no_straggler_among_them() -> None:
    assert Ranks(8).train(60, {rank: 0.05 + 0.012 * rank for rank in range(8)}) == []


@pytest.mark.parametrize(("world_size", "known"), [(2, True), (4, False)], ids=["two ranks", "waits are not known"])
def test_where_nobody_can_tell_nobody_is_named(world_size: int, known: bool) -> None:
    assert Ranks(world_size).train(60, {1: 0.19}, known=known) == []


def test_a_rank_that_is_slow_on_another_node_as_well_has_more_to_do() -> None:
    ranks = Ranks()
    assert [verdict.node_id for verdict in ranks.train(30, {3: 0.18})] == ["node1"]
    ranks.replaced(3, "node2")
    assert ranks.train(60, {3: 0.18}) == []


def test_a_straggler_is_named_and_not_moved_unless_that_was_asked_for() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.straggles(3)
    assert scene.notes("straggler")[-1].fields == {"rank": 3, "node": "node1", "own_s": 0.3, "median_s": 0.1}
    assert scene.state.failures.stragglers == {3: pytest.approx(3.0)}
    assert not scene.state.recovery.swaps
    scene.straggles(3, over=True)
    assert scene.state.failures.stragglers == {}
    assert len(scene.notes("straggler_over")) == 1


def test_its_node_is_drained_once_a_spare_has_built_its_ranks() -> None:
    scene = Scene(swap_stragglers=True)
    scene.start(commit_step=4)
    scene.forget()
    scene.straggles(3)
    assert scene.notes("straggler")[-1].fields["swap"] == "its node is drained"
    assert list(scene.state.recovery.swaps) == ["node1"]


def test_without_a_spare_the_reason_is_said_and_all_train_on() -> None:
    scene = Scene(swap_stragglers=True, spares=0)
    scene.start(commit_step=4)
    scene.straggles(3)
    assert "no spare" in str(scene.notes("straggler")[-1].fields["swap"])
    assert scene.state.roster.nodes["node1"].role is NodeRole.MEMBER


def test_a_verdict_on_a_generation_that_is_over_counts_for_nothing() -> None:
    scene = Scene()
    scene.start(commit_step=4)
    scene.straggles(3, generation=0)
    assert scene.state.failures.stragglers == {}
