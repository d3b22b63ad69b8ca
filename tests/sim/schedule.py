"""One run of the simulation: a job of a few steps, faults at random moments until they stop, then quiet until the end."""

import itertools
from collections.abc import Callable
from dataclasses import replace

from sim.node import SimNode
from sim.rank import SimRank
from sim.supervisor import SimSupervisor
from sim.truth import Truth
from sim.world import World
from supervising import too_often

from deadpool.proto.config import JobConfig, OnExhausted
from deadpool.supervisor.core import Job
from deadpool.supervisor.state import Phase

_BOUND_S = 150.0  # faults stop after some seconds; the job must be over by then, whatever happened

_CONFIG = JobConfig(
    job_id="sim",
    nnodes=2,
    nproc_per_node=1,
    command=("train.py",),
    python="python",
    log_dir="logs",
    quiesce_timeout_s=3.0,
    join_timeout_s=10.0,
    reform_timeout_s=3.0,
    restore_timeout_s=5.0,
    hang_timeout_s=6.0,
    max_recoveries_without_progress=30,
    max_restarts=20,  # a rank may be killed before it has joined: the job has no hooks yet
)


class Run:
    """`Run(seed).check()` raises AssertionError, with the seed and the last events, when anything goes against the rules."""

    def __init__(self, seed: int) -> None:
        self.world = world = World(seed)
        shape = world.random
        nnodes, nproc = shape.choice([(2, 1), (2, 2), (3, 1), (2, 1), (3, 2)])
        self.config = replace(
            _CONFIG,
            nnodes=nnodes,
            nproc_per_node=nproc,
            spares=shape.choice([0, 1, 1, 2]),
            replicas=shape.choice([1, 1, 1, 2]),
            on_exhausted=shape.choice([OnExhausted.WAIT, OnExhausted.WAIT, OnExhausted.ABORT]),
            failure_rules=too_often(shape.choice([1, 3])),
            min_nnodes=int(seed % 3 == 0),
        )
        self.until = shape.randint(4, 10)
        self.truth = Truth(self.config.world_size, seed)
        self.supervisor = SimSupervisor(world, self.truth, self.config)
        for index in range(nnodes + self.config.spares):
            world.at(world.between(0, 0.5), self._boot, index)
        moment_s = world.between(0.2, 2.5)
        for _ in range(shape.choice([1, 1, 2, 2, 3, 4, 6])):
            world.at(moment_s, shape.choice(self._faults()))
            moment_s += shape.choice([world.between(0, 0.1), world.between(0, 1.0), world.between(0, 3.0)])

    def check(self) -> None:
        self.world.run(_BOUND_S)
        state, truth, supervisor = self.supervisor.job.state, self.truth, self.supervisor
        truth.check(state.over, f"not over in {_BOUND_S} s: {state.phase}, {state.attempt}, {state.roster}")
        if supervisor.exit_code == 0:
            truth.check(state.phase is Phase.END, f"{state.phase}")
            last = {truth.steps[content] for groups in truth.generations.values() for content in groups.resumed.values()}
            finished = {truth.steps.get(truth.committed), max(last)}  # or it was resumed from, sealed in every vault
            truth.check(self.until in finished, "done, but the last step was never committed")
        else:
            excused = truth.excused or self.config.on_exhausted is OnExhausted.ABORT
            truth.check(excused, f"ended with {supervisor.exit_code} ({supervisor.root_cause})")
        lost = sum(record.committed_steps_lost for record in state.records)
        truth.check(lost == 0 or truth.excused, f"{lost} committed steps lost")

    def check_replay(self) -> None:
        """The same events make an equal job."""
        job = Job(self.config)
        for event, now_s in self.supervisor.past:
            if event is None:
                job.tick(now_s=now_s)
            else:
                job.handle(event, now_s=now_s)
        self.truth.check(job.state == self.supervisor.job.state, "the replayed job differs")

    def _boot(self, index: int) -> None:
        node = SimNode(self.supervisor, index, self.until)
        self.supervisor.nodes[node.node_id] = node
        node.connect()

    # ------------------------------------------------------------ faults

    def _faults(self) -> list[Callable[[], None]]:
        return [
            self._kill_rank,
            self._kill_rank,
            self._kill_node,
            self._cut,
            self._drop,
            self._hiccup,
            self._freeze,
            self._suspend,
            self._corrupt,
            self._kill_supervisor,
            self._kill_supervisor,
            self._drain,
        ]

    def _kill_rank(self) -> None:
        processes = self.supervisor.processes()
        if processes:
            process = self.world.random.choice(processes)
            self._log(f"kill pid {process.pid} on {process.node.node_id}")
            process.node.process_dies(process.number)

    def _kill_node(self) -> None:
        nodes = [node for node in self.supervisor.nodes.values() if node.alive]
        if nodes and not self.supervisor.job.state.over:
            node = self.world.random.choice(nodes)
            self._log(f"kill {node.node_id}")
            node.die()
            self.world.at(self.world.between(0.2, 20.0), self._boot, node.index)

    def _cut(self) -> None:
        seconds = self.world.between(0.1, 8.0)
        for node in self._any_node():
            self._log(f"cut {node.node_id} off for {seconds:.1f} s")
            node.cut(seconds)

    def _drop(self) -> None:
        for node in self._any_node():
            self._log(f"drop {node.node_id}'s connection")
            node.drop_connection()

    def _hiccup(self) -> None:
        processes = [process for process in self.supervisor.processes() if process.member is not None]
        if processes:
            process = self.world.random.choice(processes)
            assert process.member is not None
            self._log(f"a collective fails on rank {process.member.rank}")
            process.collective_fails(process.member.generation)

    def _freeze(self) -> None:
        processes = self.supervisor.processes()
        if processes:
            process = self.world.random.choice(processes)
            self._log(f"freeze pid {process.pid} on {process.node.node_id}")
            process.frozen = True
            if self.world.chance(0.5):  # else it is found by the steps that do not advance
                self.world.at(1.0, self._peers_time_out, process)

    def _peers_time_out(self, frozen: SimRank) -> None:
        """Sooner or later a collective that waits for the frozen rank fails."""
        if frozen.alive and frozen.node.alive and not self.world.over:
            self.supervisor.peers_notice(frozen)
            self.world.at(2.0, self._peers_time_out, frozen)

    def _suspend(self) -> None:
        seconds = self.world.between(0.5, 10.0)
        self._log(f"suspend the supervisor for {seconds:.1f} s")
        self.supervisor.suspend(seconds)

    def _kill_supervisor(self) -> None:
        self._log("kill the supervisor")
        self.supervisor.kill()

    def _drain(self) -> None:
        """A node is to be freed, or may be used again; after a while all may, so that no job waits for ever."""
        for node in self._any_node():
            undo = self.world.chance(0.3)
            self._log(f"{'undo the drain of' if undo else 'drain'} {node.node_id}")
            self.supervisor.drain(node.node_id, undo=undo)
            self.world.at(self.world.between(0.5, 20.0), self._undo_drain, node.node_id)

    def _undo_drain(self, node_id: str) -> None:
        self.supervisor.drain(node_id, undo=True)

    def _corrupt(self) -> None:
        """Every copy of one rank's state in one vault goes bad: as if that vault were lost, should it be needed."""
        for node in self._any_node():
            held = [slots for slots in node.vault.values() if any(slots)]
            if node.alive and held:
                slots = self.world.random.choice(held)
                self._log(f"corrupt {slots} on {node.node_id}")
                slots[:] = [replace(slot, bad=True) if slot is not None else None for slot in slots]
                self.truth.lost(node.node_id)

    def _any_node(self) -> list[SimNode]:
        """Returns one node, none when there is none yet."""
        nodes = list(self.supervisor.nodes.values())
        return [self.world.random.choice(nodes)] if nodes else []

    def _log(self, text: str) -> None:
        self.truth.log.append(f"{self.world.now_s:9.3f} ---- {text}")


def run_seeds(first: int, count: int, *, replay_every: int = 20) -> None:
    """Runs that many seeds; the first failure says which one."""
    for seed in itertools.islice(itertools.count(first), count):
        run = Run(seed)
        run.check()
        if seed % replay_every == 0:
            run.check_replay()
