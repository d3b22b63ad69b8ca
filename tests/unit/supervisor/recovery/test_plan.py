"""plan_recovery against its rules, and against a search that tries everything."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from supervising import replica, snapshot

from deadpool.proto.messages import NO_STEP, CopyConflict, Endpoint, Slot, SlotKind, SourceKind
from deadpool.supervisor.model.lineage import Sent, usable
from deadpool.supervisor.recovery.plan import Bound, Live, Plan, as_good_as_committed, plan_recovery


@dataclass(frozen=True)
class Case:
    homes: tuple[str, ...]
    live: tuple[Live, ...]
    vaults: dict[str, tuple[Slot, ...]]
    dead: frozenset[str]
    lineage: tuple[Sent, ...]
    conflicts: tuple[CopyConflict, ...] = ()
    bounds: tuple[Bound, ...] = ()

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        return {node: Endpoint(node_id=node, host="h", port=1) for node in self.vaults if node not in self.dead}

    def plan(self) -> tuple[Plan | None, str]:
        return plan_recovery(
            homes=self.homes,
            live=self.live,
            vaults=self.vaults,
            endpoints=self.endpoints,
            lineage=self.lineage,
            conflicts=self.conflicts,
            bounds=self.bounds,
        )

    def contradicts(self, slot: Slot, peer: int, peer_generation: int) -> bool:
        """Returns whether it is known that the replica does not fit that peer's snapshot."""
        known = CopyConflict(
            rank=slot.rank, generation=slot.generation, step=slot.step, peer=peer, peer_generation=peer_generation
        )  # fmt: skip
        return known in self.conflicts


def _case(
    homes: Sequence[str], *, live: Sequence[Live] = (), vaults: Mapping[str, tuple[Slot, ...]] | None = None,
    lineage: Sequence[Sent] = (), dead: Sequence[str] = (), conflicts: Sequence[CopyConflict] = (),
) -> Case:  # fmt: skip
    return Case(tuple(homes), tuple(live), dict(vaults or {}), frozenset(dead), tuple(lineage), tuple(conflicts))


_NODES = ("A", "B", "C")
_PEERS: tuple[tuple[tuple[int, ...], ...], ...] = ((), ((0,),), ((1, 2),), ((0, 3), (2,)), ((3,),))


def _held(number: int) -> tuple[str, Slot]:
    """Returns the node and slot that a number stands for: plain numbers are drawn, and made smaller, fast."""
    number, node = divmod(number, 3)
    number, rank = divmod(number, 4)
    number, step = divmod(number, 4)
    number, generation = divmod(number, 3)
    if number >= len(_PEERS):
        return _NODES[node], snapshot(rank, step, generation + 1)
    return _NODES[node], replica(rank, step, generation + 1, _PEERS[number])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    size = draw(st.integers(1, 4))
    homes = [_NODES[each] for each in draw(st.lists(st.integers(0, 2), min_size=size, max_size=size))]
    held = [_held(each) for each in draw(st.lists(st.integers(0, 3 * 4 * 4 * 3 * 2 * len(_PEERS) - 1), max_size=16))]
    live = draw(st.lists(st.integers(0, 15), min_size=size, max_size=size))
    states = [Live(rank=rank, generation=1 + each % 4, step=each // 4) for rank, each in enumerate(live) if each % 4 < 3]
    lineage = [
        Sent(generation=2 + each % 3, resume_step=each // 3 - 1) for each in draw(st.lists(st.integers(0, 14), max_size=2))
    ]
    dead = _NODES[: draw(st.integers(0, 1))]
    vaults = {node: tuple(s for n, s in held if n == node) for node in _NODES}
    pairs = [  # of what is there: others would say nothing
        CopyConflict(rank=one.rank, generation=one.generation, step=one.step, peer=other.rank, peer_generation=other.generation)
        for _, one in held
        for _, other in held
        if (one.kind, other.kind, one.step) == (SlotKind.REPLICA, SlotKind.SNAPSHOT, other.step) and one.rank != other.rank
    ]
    conflicts = [pair for pair in dict.fromkeys(pairs) if draw(st.booleans())]
    return _case(homes, live=states, vaults=vaults, lineage=lineage, dead=dead, conflicts=conflicts)


def _newest(slots: Sequence[tuple[str, Slot]]) -> dict[int, int]:
    """Returns rank -> the generation of its newest snapshot among these."""
    newest: dict[int, int] = {}
    for _, slot in slots:
        if slot.kind is SlotKind.SNAPSHOT:
            newest[slot.rank] = max(slot.generation, newest.get(slot.rank, 0))
    return newest


def _possible(case: Case, rank: int, step: int) -> bool:
    """Returns whether the rank can be brought to this step, straight from the rules' words."""
    slots = [
        (node, slot)
        for node, held in case.vaults.items()
        if node not in case.dead
        for slot in held
        if slot.step == step and usable(slot.generation, slot.step, case.lineage)
    ]
    if any(each.rank == rank and each.step == step and usable(each.generation, step, case.lineage) for each in case.live):
        return True
    snapshots = _newest(slots)
    return rank in snapshots or any(
        slot.kind is SlotKind.REPLICA
        and slot.rank == rank
        and all(
            any(peer in snapshots and not case.contradicts(slot, peer, snapshots[peer]) for peer in peers.ranks)
            for peers in slot.peer_sets
        )
        for _, slot in slots
    )


@given(cases())
@settings(max_examples=300)
def test_the_plan_is_the_largest_step_that_any_search_finds(case: Case) -> None:
    plan, why = case.plan()
    found = [step for step in range(4) if all(_possible(case, rank, step) for rank in range(len(case.homes)))]
    assert why
    assert (plan.resume_step if plan else None) == max(found, default=None)


@given(cases(), st.lists(st.integers(0, 4), min_size=1, max_size=2))
@settings(max_examples=300)
def test_the_plan_goes_back_as_far_as_the_lowest_bound(case: Case, steps: list[int]) -> None:
    """And no further; where that cannot be, it leaves out as few steps as it can."""
    plan, why = replace(case, bounds=tuple(Bound(step=step, what=f"bound {step}") for step in steps)).plan()
    found = [step for step in range(4) if all(_possible(case, rank, step) for rank in range(len(case.homes)))]
    before = [step for step in found if step <= min(steps)]
    assert (plan.resume_step if plan else None) == (max(before) if before else min(found, default=None))
    assert (plan.newest_step if plan else None) == max(found, default=None)
    assert (f"later than bound {min(steps)}" in why) is (plan is not None and plan.resume_step < plan.newest_step)


@given(cases())
@settings(max_examples=300)
def test_every_source_exists_is_alive_and_of_the_one_step(case: Case) -> None:
    """None is named that is not reported: torn copies, and those that were found bad, are not (test_vault.py, test_restore.py).

    None is of a superseded branch: what a node that was given up had gone on to do is of one.
    """
    plan, _ = case.plan()
    if plan is None:
        return
    step = plan.resume_step
    assert [source.rank for source in plan.sources] == list(range(len(case.homes)))
    for source in plan.sources:
        assert usable(source.slot_generation, step, case.lineage)
        match source.kind:
            case SourceKind.LIVE:
                assert Live(rank=source.rank, generation=source.slot_generation, step=step) in case.live
            case SourceKind.VAULT:
                home = case.homes[source.rank]
                assert home not in case.dead
                assert snapshot(source.rank, step, source.slot_generation) in case.vaults[home]
            case SourceKind.ELSEWHERE:
                assert source.endpoint is not None
                assert source.endpoint.node_id not in (*case.dead, case.homes[source.rank])
                assert snapshot(source.rank, step, source.slot_generation) in case.vaults[source.endpoint.node_id]
            case SourceKind.REPLICA:
                assert source.endpoint is not None
                assert source.endpoint.node_id not in case.dead
                held = [
                    slot
                    for slot in case.vaults[source.endpoint.node_id]
                    if (slot.kind, slot.rank, slot.generation, slot.step)
                    == (SlotKind.REPLICA, source.rank, source.slot_generation, step)
                ]
                ranks = {peer.rank for peer in source.peers}
                assert any(all(ranks & set(peers.ranks) for peers in slot.peer_sets) for slot in held)
                for peer in source.peers:
                    assert peer.endpoint.node_id not in case.dead
                    assert not case.contradicts(held[0], peer.rank, peer.slot_generation)
                    assert usable(peer.slot_generation, step, case.lineage)
                    assert snapshot(peer.rank, step, peer.slot_generation) in case.vaults[peer.endpoint.node_id]


@given(cases(), st.lists(st.integers(-1, 3), min_size=3, max_size=3))
@settings(max_examples=300)
def test_the_sources_are_of_one_branch(case: Case, resumed: list[int]) -> None:
    """Every generation has had its plan, and what was stepped to in it comes after the step that it resumed at."""
    lineage = tuple(Sent(generation=generation, resume_step=step) for generation, step in enumerate(resumed, 2))
    after = {1: -1} | {sent.generation: sent.resume_step for sent in lineage}
    history = replace(
        case,
        lineage=lineage,
        live=tuple(each for each in case.live if each.step > after[each.generation]),
        vaults={node: tuple(slot for slot in held if slot.step > after[slot.generation]) for node, held in case.vaults.items()},
    )
    plan, _ = history.plan()
    assert plan is None or len({source.slot_generation for source in plan.sources}) == 1


@given(cases())
@settings(max_examples=150)
def test_a_nearer_source_is_never_passed_over(case: Case) -> None:
    plan, _ = case.plan()
    if plan is None:
        return
    for source in plan.sources:
        live = [each for each in case.live if each.rank == source.rank and usable(each.generation, each.step, case.lineage)]
        if any(each.step == plan.resume_step for each in live):
            assert source.kind is SourceKind.LIVE


def test_all_ranks_go_back_to_the_step_of_the_last_one() -> None:
    live = [Live(rank=0, generation=1, step=6), Live(rank=1, generation=1, step=5)]
    plan, _ = _case("AB", live=live, vaults={"A": (snapshot(0, 5), snapshot(0, 6)), "B": ()}).plan()
    assert plan is not None
    assert plan.resume_step == 5
    assert [source.kind for source in plan.sources] == [SourceKind.VAULT, SourceKind.LIVE]


def test_snapshot_of_a_dead_branch_is_no_source() -> None:
    lineage = [Sent(generation=2, resume_step=4)]
    vaults = {"A": (snapshot(0, 5, 1), snapshot(0, 4, 1))}
    plan, _ = _case("A", vaults=vaults, lineage=lineage).plan()
    assert plan is not None
    assert plan.resume_step == 4
    plan, why = _case("A", vaults={"A": (snapshot(0, 5, 1),)}, lineage=lineage).plan()
    assert plan is None
    assert why.startswith("no rank holds any state")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=5), st.integers(1, 3))
@settings(max_examples=300)
def test_a_state_is_usable_where_the_job_has_come_by_it(history: list[tuple[int, int]], first_steps: int) -> None:
    """Against the states themselves: each is the tuple of the generations in which its steps were made, one after the other.

    The first generation makes some steps; each later one resumes at S_k of the branch as it is then, and makes some more.
    """
    branch: tuple[int, ...] = (1,) * first_steps
    made = {(1, step): branch[:step] for step in range(first_steps + 1)}
    lineage = []
    for generation, (back, steps) in enumerate(history, 2):
        resume_step = max(0, len(branch) - back)
        lineage.append(Sent(generation=generation, resume_step=resume_step))
        at_plan = branch[:resume_step]
        branch = at_plan + (generation,) * steps
        made |= {(generation, step): branch[:step] for step in range(resume_step + 1, len(branch) + 1)}
    for (generation, step), state in made.items():
        on_the_way = state == branch[:step]
        assert usable(generation, step, lineage) is on_the_way, (generation, step, lineage)
    assert not usable(1, NO_STEP, lineage)


def test_a_start_from_scratch_makes_all_older_states_dead() -> None:
    plan, _ = _case("A", vaults={"A": (snapshot(0, 0, 1),)}, lineage=[Sent(generation=2, resume_step=NO_STEP)]).plan()
    assert plan is None


def test_replica_needs_a_peer_of_each_set() -> None:
    vaults = {"A": (replica(1, 3, 1, [[0], [2]]), snapshot(0, 3)), "C": (snapshot(2, 3),)}
    live = [Live(rank=0, generation=1, step=3), Live(rank=2, generation=1, step=3)]
    plan, _ = _case("ABC", live=live, vaults=vaults).plan()
    assert plan is not None
    assert [peer.rank for peer in plan.sources[1].peers] == [0, 2]
    plan, why = _case("ABC", live=live, vaults=vaults, dead="C").plan()
    assert plan is None
    assert why == "there is no source of step 3 for rank 1, and it is no better at other steps"


def test_a_replica_does_not_count_on_a_peer_that_it_contradicts() -> None:
    """The other peer of its set serves; without it the rank's snapshot elsewhere, or the step before."""
    vaults = {
        "A": (replica(1, 3, 1, [[0, 2]]), replica(1, 2, 1, [[0, 2]]), snapshot(0, 3), snapshot(0, 2)),
        "C": (snapshot(2, 3), snapshot(2, 2)),
    }
    conflicts = [CopyConflict(rank=1, generation=1, step=3, peer=peer, peer_generation=1) for peer in (0, 2)]
    plan, _ = _case("ABC", vaults=vaults, conflicts=conflicts[:1]).plan()
    assert plan is not None
    assert (plan.resume_step, [peer.rank for peer in plan.sources[1].peers]) == (3, [2])
    plan, _ = _case("ABC", vaults=vaults, conflicts=conflicts).plan()
    assert plan is not None
    assert plan.resume_step == 2
    plan, _ = _case("ABC", vaults=vaults | {"D": (snapshot(1, 3),)}, conflicts=conflicts).plan()
    assert plan is not None
    assert (plan.resume_step, plan.sources[1].kind) == (3, SourceKind.ELSEWHERE)
    plan, why = _case("ABC", vaults=vaults | {"A": (vaults["A"][0], vaults["A"][2])}, conflicts=conflicts).plan()
    assert plan is None
    assert why.endswith("rank 1's copies contradict those of rank 0, 2 (silent corruption)")


def test_a_rank_that_returns_takes_any_others_whole_copy() -> None:
    """Snapshots first, then replicas that leave nothing out; none of another step."""
    alike = replica(1, 5, peers=[[0]])
    held = {"A": (snapshot(0, 5), replica(0, 5), alike), "B": (replica(0, 5), replica(1, 4)), "C": ()}

    def peers(*nodes: str) -> list[tuple[int, str, str]]:
        plan, _ = plan_recovery(
            homes=("A", "B", "C"),
            live=(Live(rank=0, generation=1, step=5), Live(rank=1, generation=1, step=5)),
            vaults={node: held[node] for node in nodes},
            endpoints={node: Endpoint(node_id=node, host="h", port=1) for node in nodes},
            lineage=(),
            stale=(2,),
        )
        found = plan.sources[2] if plan is not None else None
        if found is None or found.kind is not SourceKind.PEER:
            return []
        return [(peer.rank, peer.kind, peer.endpoint.node_id) for peer in found.peers]

    assert peers("A", "B") == [(0, "snapshot", "A"), (0, "replica", "A"), (0, "replica", "B")]
    assert peers("B") == [(0, "replica", "B")]
    assert peers("C") == []


def test_the_reason_names_the_ranks_of_the_step_that_lacks_fewest() -> None:
    live = [Live(rank=rank, generation=1, step=step) for rank, step in itertools.product((0, 1), (7,))]
    plan, why = _case("AABB", live=live, vaults={"A": (snapshot(0, 6), snapshot(1, 6)), "B": (snapshot(2, 6),)}).plan()
    assert plan is None
    assert "step 6 for rank 3" in why


def test_a_state_that_lies_wherever_the_commit_lies_is_as_good_as_committed() -> None:
    vaults = {"A": [snapshot(0, 2), snapshot(0, 3), replica(1, 2)], "B": [snapshot(1, 2), snapshot(1, 3), replica(0, 3)]}
    assert as_good_as_committed(3, commit_step=2, vaults=vaults, lineage=[]) == NO_STEP
    vaults["A"].append(replica(1, 3))
    assert as_good_as_committed(3, commit_step=2, vaults=vaults, lineage=[]) == 3
    vaults["C"] = [replica(0, 1)]  # of an earlier membership, older than the commit
    assert as_good_as_committed(3, commit_step=2, vaults=vaults, lineage=[]) == 3
    vaults["B"].append(snapshot(1, 4))  # one rank is further, and so will all be; S_3 must stay until S_4 is committed
    assert as_good_as_committed(4, commit_step=2, vaults=vaults, lineage=[]) == 3
    assert as_good_as_committed(2, commit_step=2, vaults=vaults, lineage=[]) == NO_STEP
    assert as_good_as_committed(3, commit_step=NO_STEP, vaults=vaults, lineage=[]) == NO_STEP
    assert as_good_as_committed(3, commit_step=2, vaults=vaults, lineage=[Sent(generation=2, resume_step=2)]) == 2
    assert as_good_as_committed(3, commit_step=2, vaults={}, lineage=[]) == NO_STEP


def test_a_state_in_which_ranks_have_parted_is_not_as_good_as_committed_until_all_of_its_copies_say_so() -> None:
    """It cannot be restored once a node is lost, and has not been committed: the slots of the commit before it must stay."""
    no, all_copies = (False,) * 4, (True,) * 4
    assert _good_step(parted=no, digests=(7, 7)) == 3
    for parted in itertools.product((False, True), repeat=4):
        assert _good_step(parted=parted, digests=(7, 8)) == (3 if parted == all_copies else 2), parted


def _good_step(*, parted: Sequence[bool], digests: tuple[int, int]) -> int:
    """Returns what is kept of S_2, which is committed, and S_3, which lies wherever S_2 does."""
    vaults: dict[str, list[Slot]] = {"A": [], "B": []}
    for node, slot in [*_copies(2, (False,) * 4, (5, 5)), *_copies(3, parted, digests)]:
        vaults[node].append(slot)
    return as_good_as_committed(3, commit_step=2, vaults=vaults, lineage=[])


def _copies(step: int, parted: Sequence[bool], digests: tuple[int, int]) -> Iterator[tuple[str, Slot]]:
    """Gives (node, copy) of a state of rank 0 on A and rank 1 on B: `parted` copies no longer say that both hold the same."""
    made = [("A", snapshot, 0), ("B", replica, 0), ("B", snapshot, 1), ("A", replica, 1)]
    for (node, copy, rank), apart in zip(made, parted, strict=True):
        yield node, copy(rank, step, peers=() if apart else [(1 - rank,)], digest=digests[rank])
