"""After the loss of any nodes that --replicas promises to survive, and of whole domains, every item of every rank has a source.

Meshes, placements of items on them, racks, seats and lost nodes are drawn; who relies on whom, what travels, who holds replicas,
which spare takes over and what the plan says is decided by the code that decides it in a job.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import assume, given
from hypothesis import strategies as st

from deadpool.agent.vault.folder import rank_set
from deadpool.proto.config import JobConfig, Places
from deadpool.proto.messages import Hello, Slot, SlotKind, Source, SourceKind
from deadpool.proto.vault.layout import UNIQUE, Item, Layout, Tables, checksum
from deadpool.proto.vault.together import HeldTogether
from deadpool.supervisor.model.membership import NodeRole, Roster, choose_spare
from deadpool.supervisor.model.placing import Placing
from deadpool.supervisor.recovery.plan import plan_recovery
from deadpool.trainer_hooks.protection.peers import RankPlace, sharing

STEP = 7
CONFIG = JobConfig(job_id="j", nnodes=1, nproc_per_node=1, command=("s.py",), python="python", log_dir="logs")
Sums = Mapping[str, int]  # by an item's key: the checksum of what a rank holds of it


@dataclass
class Cluster:
    """Ranks on nodes, with the vaults. `held[r]`: what rank r holds. `config` says how many replicas and where.

    A node that is lost comes back with an empty vault. `gone`: those that have not yet.
    """

    roster: Roster
    config: JobConfig
    held: tuple[Sums, ...]
    racks: Mapping[str, str]
    vaults: dict[str, list[Slot]] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)
    placing: Placing = field(default_factory=lambda: Placing(holders={}, spread=0))
    keepers: dict[int, tuple[str, ...]] = field(default_factory=dict)  # by seat
    generation: int = 0
    gone: list[str] = field(default_factory=list)

    @property
    def step(self) -> int:
        return STEP + self.generation

    def come(self, name: str) -> None:
        index = int(name.removeprefix("node"))
        domain = self.racks.get(name, "")
        self.roster.add(Hello(node_id=name, hint=index, host="h", port=1, pid=1, generation=0, domain=domain))
        self.vaults[name] = []

    def commit(self) -> None:
        """A generation begins with the nodes that there are, and its first state is committed."""
        self.generation += 1
        self.placing = self.roster.placing(self.config)
        self.keepers = {self.roster.seats.index(owner): kept for owner, kept in self.placing.holders.items()}
        placements = {each.rank: each for _, of_node in self.roster.all_placements(self.config) for each in of_node}
        places = {
            rank: RankPlace(each.node_id, each.domain or each.node_id, min(self.config.replicas, len(each.holders)))
            for rank, each in placements.items()
        }
        published = [
            (places[rank], {(checksum(key.encode()), total) for key, total in sums.items()})
            for rank, sums in enumerate(self.held)
        ]
        for rank, place in placements.items():
            own = {key: (checksum(key.encode()), total) for key, total in self.held[rank].items()}
            others = {other: each for other, each in enumerate(published) if other != rank}
            items = [Item(key=key, offset=0, nbytes=64, dtype="uint8", shape=(64,)) for key in own]
            layout = Layout.place(items).with_peers(sharing(others, places[rank], own).relied_on)
            self.layouts[rank] = layout
            sums = tuple(self.held[rank][item.key] for item in layout.items)
            together = HeldTogether(rank).of(Tables(layout=layout, meta=b"", checksums=sums))
            sets = tuple(rank_set(rank, ranks, digest) for ranks, digest in together.items())
            kept = [(place.node_id, SlotKind.SNAPSHOT), *((holder.node_id, SlotKind.REPLICA) for holder in place.holders)]
            for node_id, kind in kept:
                slot = Slot(kind=kind, rank=rank, generation=self.generation, step=self.step, peer_sets=sets)
                older = [each for each in self.vaults[node_id] if (each.kind, each.rank) == (kind, rank)][-1:]
                others_slots = [each for each in self.vaults[node_id] if (each.kind, each.rank) != (kind, rank)]
                self.vaults[node_id] = [*others_slots, *older, slot]

    def promised(self) -> int:
        """Returns how many nodes may be lost."""
        return min(self.config.replicas, len(self.roster.live()) - 1)

    def domain(self, node: str) -> str:
        return self.placing.domains.get(node, node)

    def lose(self, lost: Collection[str]) -> dict[int, str]:
        """Returns which seats are taken, by which spares; where there are not enough, lost nodes return."""
        for name in sorted(lost):
            self.vaults[name].clear()
            self.roster.vacate(name, NodeRole.LOST)
        self.gone += sorted(lost)
        taken: dict[int, str] = {}
        for seat in self.roster.vacancies():
            spare, _ = choose_spare(
                self.roster.nodes, seat=seat, keepers=self.keepers[seat], spreads=self.roster.spreads(seat, self.config)
            )
            if spare is None:
                spare = self.gone.pop()
                self.come(spare)
            self.roster.take_seat(seat, spare)
            taken[seat] = spare
        return taken

    def check(self) -> tuple[Source, ...]:
        """Returns where each rank gets the newest committed state from: from somewhere, each item of it."""
        plan, why = plan_recovery(
            homes=[rank.node_id for rank in self.roster.ranks],
            live=[],
            vaults=self.vaults,
            endpoints={node.node_id: node.endpoint for node in self.roster.live()},
            lineage=[],
        )
        assert plan is not None, why
        assert plan.resume_step == self.step
        lacking = {source.rank: self.lacks(source.rank, source, self.layouts[source.rank]) for source in plan.sources}
        assert not any(lacking.values()), lacking
        return plan.sources

    def lacks(self, rank: int, source: Source, layout: Layout) -> list[str]:
        """Returns the items that the source does not give back: neither the replica nor a peer's snapshot has their bytes."""
        if source.kind is not SourceKind.REPLICA:
            return []
        peers = {peer.rank for peer in source.peers}
        return [
            item.key
            for item in layout.items
            if item.peers != UNIQUE
            and not any(
                self.held[peer].get(item.key) == self.held[rank][item.key] for peer in peers & set(layout.peer_sets[item.peers])
            )
        ]


@st.composite
def clusters(draw: st.DrawFn, *, racks: bool = False, spares: int = 0) -> Cluster:
    """An item is cut along some dimensions of the mesh and the same along the others, as DTensor's placements say."""
    nnodes, nproc = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    mesh = draw(st.sampled_from(_meshes(nnodes * nproc)))
    cuts = draw(st.lists(st.sets(st.integers(0, len(mesh) - 1)), min_size=1, max_size=4))
    names = [f"node{index}" for index in range(nnodes + draw(st.integers(spares, 3)))]
    paths = draw(st.sampled_from([["a", "b"], ["a", "b", "c"], ["", "a", "b", "c"], ["p/a", "p/b", "q/c", "q/d"]]))
    in_order = draw(st.booleans())  # the seats go through one rack after the other, as ranks mostly do
    of = {name: paths[number * len(paths) // len(names)] for number, name in enumerate(names)}
    held = tuple(
        {f"model/{number}": hash((number, *(where[axis] for axis in sorted(cut)))) % 2**64 for number, cut in enumerate(cuts)}
        for where in (_coordinates(rank, mesh) for rank in range(nnodes * nproc))
    )
    places = draw(st.sampled_from(Places))
    cluster = Cluster(
        roster=Roster.empty(nnodes=nnodes, nproc_per_node=nproc),
        config=replace(CONFIG, replicas=draw(st.integers(1, 3)), place_replicas=places),
        held=held,
        racks=({name: of[name] if in_order else draw(st.sampled_from(paths)) for name in names}) if racks else {},
    )
    for name in names:
        cluster.come(name)
    for seat, name in enumerate((names if in_order else draw(st.permutations(names)))[:nnodes]):
        cluster.roster.take_seat(seat, name)
    cluster.commit()
    return cluster


@given(clusters(racks=True), st.data())
def test_every_item_has_a_source_after_each_of_many_losses(cluster: Cluster, data: st.DataObject) -> None:
    """Members and spares are lost, spares take over, lost ones come back; once a state is committed again more are lost."""
    for _ in range(data.draw(st.integers(1, 3))):
        if data.draw(st.booleans()):
            domains = sorted({cluster.domain(node.node_id) for node in cluster.roster.live()})
            together = min(cluster.config.replicas, cluster.placing.spread, len(domains) - 1)
            gone = data.draw(st.sets(st.sampled_from(domains), min_size=min(1, together), max_size=together))
            lost = {node.node_id for node in cluster.roster.live() if cluster.domain(node.node_id) in gone}
        else:
            names = sorted(node.node_id for node in cluster.roster.live())
            lost = data.draw(st.sets(st.sampled_from(names), max_size=cluster.promised()))
        first = set(data.draw(st.permutations(sorted(lost)))[: data.draw(st.integers(0, len(lost)))])
        cluster.lose(first)
        cluster.check()
        cluster.lose(lost - first)  # a second failure during the first: spares that have taken a seat may be among them
        cluster.check()
        for name in list(cluster.gone) if data.draw(st.booleans()) else ():
            cluster.gone.remove(name)
            cluster.come(name)
        cluster.commit()


@given(clusters(spares=1), st.data())
def test_a_swap_restores_from_the_spares_own_vault(cluster: Cluster, data: st.DataObject) -> None:
    assume(cluster.config.place_replicas is not Places.RING)
    seat = data.draw(st.integers(0, len(cluster.roster.seats) - 1))
    owner = cluster.roster.seats[seat]
    assert owner is not None
    (spare,) = cluster.lose({owner}).values()
    assert spare in cluster.placing.holders[owner]
    sources = cluster.check()
    moved = [source for source in sources if cluster.roster.ranks[source.rank].node_id == spare]
    assert all(source.kind is SourceKind.REPLICA for source in moved)
    assert {source.endpoint.node_id for source in moved if source.endpoint} == {spare}


@given(clusters(racks=True))
def test_all_that_hold_an_item_say_so_alike(cluster: Cluster) -> None:
    """Or the ranks of a set could not compare what they hold together (together.py)."""
    _agree(cluster.layouts)


@given(clusters(racks=True), st.data())
def test_so_they_do_whatever_places_they_have(cluster: Cluster, data: st.DataObject) -> None:
    """Nothing that a rank alone knows has a part in it: not its own number of copies, nor its own domain."""
    places = [
        RankPlace(rank.node_id, data.draw(st.sampled_from("abc")), data.draw(st.integers(0, 3))) for rank in cluster.roster.ranks
    ]
    pairs = [{key: (checksum(key.encode()), total) for key, total in sums.items()} for sums in cluster.held]
    relied_on = []
    for rank, place in enumerate(places):
        others = {other: (places[other], set(each.values())) for other, each in enumerate(pairs) if other != rank}
        relied_on.append(sharing(others, place, pairs[rank]).relied_on)
    for rank, found in enumerate(relied_on):
        for key, ranks in found.items():
            for other in ranks:
                assert {other, *relied_on[other][key]} == {rank, *ranks}


def _agree(layouts: Mapping[int, Layout]) -> None:
    for rank, layout in layouts.items():
        for item in layout.items:
            for other in () if item.peers == UNIQUE else layout.peer_sets[item.peers]:
                its = next(each for each in layouts[other].items if each.key == item.key)
                assert its.peers != UNIQUE
                assert {other, *layouts[other].peer_sets[its.peers]} == {rank, *layout.peer_sets[item.peers]}


def _meshes(size: int) -> list[tuple[int, ...]]:
    """Returns the meshes of one to three dimensions with so many ranks."""
    divisors = [number for number in range(1, size + 1) if size % number == 0]
    return [
        (size,),
        *((one, size // one) for one in divisors),
        *((one, two, size // (one * two)) for one in divisors for two in divisors if size % (one * two) == 0),
    ]


def _coordinates(rank: int, mesh: Sequence[int]) -> tuple[int, ...]:
    return tuple(rank // math.prod(mesh[axis + 1 :]) % size for axis, size in enumerate(mesh))
