"""After the loss of any nodes that --replicas promises to survive every item of every rank has a source.

Meshes, placements of items on them, seats and lost nodes are drawn; who relies on whom, what travels, who holds replicas and what
the plan says is decided by the code that decides it in a job.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hypothesis import assume, given
from hypothesis import strategies as st

from deadpool.agent.vault.folder import rank_set
from deadpool.proto.config import JobConfig, Places
from deadpool.proto.messages import Endpoint, Hello, Slot, SlotKind, Source, SourceKind
from deadpool.proto.vault.layout import UNIQUE, Item, Layout, Tables, checksum
from deadpool.proto.vault.together import HeldTogether
from deadpool.supervisor.model.membership import Roster
from deadpool.supervisor.recovery.plan import plan_recovery
from deadpool.trainer_hooks.protection.peers import sharing

STEP = 7
CONFIG = JobConfig(job_id="j", nnodes=1, nproc_per_node=1, command=("s.py",), python="python", log_dir="logs")
Sums = Mapping[str, int]  # by an item's key: the checksum of what a rank holds of it


@dataclass(frozen=True)
class Cluster:
    """Ranks on nodes, with the replicas of each. `held[r]`: what rank r holds. `config` says how many and where."""

    roster: Roster
    config: JobConfig
    held: tuple[Sums, ...]

    @property
    def homes(self) -> list[str]:
        return [rank.node_id for rank in self.roster.ranks]

    def domain(self, node: str) -> str:
        return self.roster.placements(node, self.config)[0].domain or node

    def layout(self, rank: int, copies: int) -> Layout:
        """Returns the layout of the rank's snapshot, with the peers that it finds in the exchange."""
        places = [(home, self.domain(home)) for home in self.homes]
        published = {
            other: (places[other], {(checksum(key.encode()), total) for key, total in sums.items()})
            for other, sums in enumerate(self.held)
            if other != rank
        }
        own = {key: (checksum(key.encode()), total) for key, total in self.held[rank].items()}
        items = [Item(key=key, offset=0, nbytes=64, dtype="uint8", shape=(64,)) for key in own]
        return Layout.place(items).with_peers(sharing(published, places[rank], own, copies).relied_on)

    def vaults(self) -> tuple[dict[str, list[Slot]], dict[int, Layout]]:
        """Returns what each node's vault holds once S_STEP is committed, and the layout of each rank's state."""
        vaults: dict[str, list[Slot]] = {node: [] for node in self.roster.nodes}
        layouts: dict[int, Layout] = {}
        for member in self.roster.members():
            for place in self.roster.placements(member.node_id, self.config):
                rank = place.rank
                layouts[rank] = self.layout(rank, len(place.holders))
                sums = tuple(self.held[rank][item.key] for item in layouts[rank].items)
                together = HeldTogether(rank).of(Tables(layout=layouts[rank], meta=b"", checksums=sums))
                sets = tuple(rank_set(rank, ranks, digest) for ranks, digest in together.items())
                places = [(member.node_id, SlotKind.SNAPSHOT), *((holder.node_id, SlotKind.REPLICA) for holder in place.holders)]
                for node_id, kind in places:
                    vaults[node_id].append(Slot(kind=kind, rank=rank, generation=1, step=STEP, peer_sets=sets))
        return vaults, layouts

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
def clusters(draw: st.DrawFn, *, racks: bool = False) -> Cluster:
    """An item is cut along some dimensions of the mesh and the same along the others, as DTensor's placements say."""
    nnodes, nproc = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    mesh = draw(st.sampled_from(_meshes(nnodes * nproc)))
    cuts = draw(st.lists(st.sets(st.integers(0, len(mesh) - 1)), min_size=1, max_size=4))
    names = [f"node{index}" for index in range(nnodes + draw(st.integers(0, 2)))]
    roster = Roster.empty(nnodes=nnodes, nproc_per_node=nproc)
    for index, name in enumerate(names):
        domain = draw(st.sampled_from(["", "", *(f"rack{number}" for number in range(nnodes))])) if racks else ""
        roster.add(Hello(node_id=name, hint=index, host="h", port=1, pid=1, generation=0, domain=domain))
    for seat, name in enumerate(draw(st.permutations(names))[:nnodes]):
        roster.take_seat(seat, name)
    held = tuple(
        {f"model/{number}": hash((number, *(where[axis] for axis in sorted(cut)))) % 2**64 for number, cut in enumerate(cuts)}
        for where in (_coordinates(rank, mesh) for rank in range(nnodes * nproc))
    )
    places = draw(st.sampled_from(Places))
    return Cluster(roster=roster, config=replace(CONFIG, replicas=draw(st.integers(1, 3)), place_replicas=places), held=held)


@given(clusters(), st.data())
def test_every_item_has_a_source(cluster: Cluster, data: st.DataObject) -> None:
    vaults, layouts = cluster.vaults()
    names = sorted(cluster.roster.nodes)
    promised = min(cluster.config.replicas, len(names) - 1)  # there are no more other nodes
    lost = data.draw(st.sets(st.sampled_from(names), max_size=promised))
    plan, why = plan_recovery(
        homes=["new" if home in lost else home for home in cluster.homes],
        live=[],
        vaults={node: slots for node, slots in vaults.items() if node not in lost},
        endpoints={node: Endpoint(node_id=node, host="h", port=1) for node in names if node not in lost},
        lineage=[],
    )
    assert plan is not None, why
    assert plan.resume_step == STEP
    lacking = {source.rank: cluster.lacks(source.rank, source, layouts[source.rank]) for source in plan.sources}
    assert not any(lacking.values()), lacking


@given(clusters(racks=True), st.data())
def test_every_item_has_a_source_where_a_whole_domain_is_lost(cluster: Cluster, data: st.DataObject) -> None:
    """As long as no domain has more than half of the nodes that train."""
    vaults, layouts = cluster.vaults()
    members = {node.node_id for node in cluster.roster.members()}
    domains = {member: cluster.domain(member) for member in members}
    assume(all(2 * count <= len(members) for count in Counter(domains.values()).values()))
    gone = data.draw(st.sampled_from(sorted(set(domains.values()))))
    lost = {name for name, node in cluster.roster.nodes.items() if gone in (domains.get(name), node.domain, name)}
    plan, why = plan_recovery(
        homes=["new" if home in lost else home for home in cluster.homes],
        live=[],
        vaults={node: slots for node, slots in vaults.items() if node not in lost},
        endpoints={node: Endpoint(node_id=node, host="h", port=1) for node in cluster.roster.nodes if node not in lost},
        lineage=[],
    )
    assert plan is not None, why
    lacking = {source.rank: cluster.lacks(source.rank, source, layouts[source.rank]) for source in plan.sources}
    assert not any(lacking.values()), lacking


@given(clusters(racks=True))
def test_all_that_hold_an_item_say_so_alike(cluster: Cluster) -> None:
    """Or the ranks of a set could not compare what they hold together (together.py)."""
    _, layouts = cluster.vaults()
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
