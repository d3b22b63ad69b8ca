"""One run of the simulation: a job of a few steps, faults at random moments until they stop, then quiet until the end."""

import itertools
import random
from dataclasses import replace

from sim.faults import Faults
from sim.supervisor import SimSupervisor
from sim.truth import Loop, Truth
from sim.world import World
from supervising import too_often

from deadpool.proto.config import JobConfig, OnExhausted, OnLoss, Places, Readiness
from deadpool.proto.messages import NO_STEP
from deadpool.supervisor.core import Job
from deadpool.supervisor.model.phase import Phase
from deadpool.supervisor.model.timeline import Stage
from deadpool.supervisor.recovery import protocol

_FEW = 10  # nodes: no job here has so many
_STAGED = 0.3  # of the runs: their recoveries are hit in a given stage
_SUSPENDED = 0.15  # of the runs: an agent gets no time for a while
_BOUND_S = 150.0  # faults stop after some seconds; the job must be over by then, whatever happened

_CONFIG = JobConfig(
    job_id="sim",
    nnodes=2,
    nproc_per_node=1,
    command=("train.py",),
    python="python",
    log_dir="logs",
    quiesce_timeout_s=3.0,
    join_timeout_s=600.0,
    reform_timeout_s=3.0,
    restore_timeout_s=5.0,
    hang_timeout_s=6.0,
    max_recoveries_without_progress=30,
)


def _racks(random_: random.Random) -> tuple[tuple[str, str], ...]:
    """Returns which nodes fail together; of half of the seeds each by itself."""
    racks = random_.choice([0, 0, 2, 3])
    return tuple((f"node{index}", f"rack{random_.randrange(racks)}") for index in range(8)) if racks else ()


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
            min_nnodes=shape.choice([0, 0, 1]),
            verify_every=shape.choice([0, 1]),
            checkpoint_every=shape.choice([0, 0, 2]),
            checkpoint_dir="shared",
            spare_readiness=shape.choice([Readiness.COLD, Readiness.WARM, Readiness.HOT, Readiness.HOT]),
            on_loss=random.Random(f"loss {seed}").choice([OnLoss.SWAP] * 5 + [OnLoss.RESTART] + [OnLoss.EXCLUDE] * 2),
            swap_stragglers=random.Random(f"swap {seed}").random() < 0.3,
            max_restarts=random.Random(f"restarts {seed}").choice([0, 20]),  # a rank may be killed before it has joined
            hot_standins=random.Random(f"hot {seed}").choice([0, 0, 1, 2]),
            relay_above=random.Random(f"relays {seed}").choice([0, 1, 2, 1000, 1000]),
            place_replicas=random.Random(f"places {seed}").choice([Places.RING, Places.RING, Places.SPARES, Places.BOTH]),
            topology=_racks(random.Random(f"racks {seed}")),
        )
        protocol.STORM_SEATS = random.Random(f"storm {seed}").choice([1, 2, 8, 8])  # no job here has so many seats as a storm
        self.until = shape.randint(4, 10)
        excluding = random.Random(f"exclude {seed}") if self.config.on_loss is OnLoss.EXCLUDE else None
        self.until += excluding.randint(0, 20) if excluding is not None else 0
        ends = sorted(random.Random(f"loops {seed}").sample(range(1, self.until), random.Random(seed).choice([0, 0, 1, 2])))
        loops = [Loop(*each) for each in itertools.pairwise([0, *ends, self.until])]
        self.truth = Truth(self.config.world_size, seed)
        self.truth.replicas, self.truth.racks = self.config.replicas, dict(self.config.topology)
        self.truth.apart_from = shape.choice([None, None, shape.randint(0, self.until)])
        self.supervisor = SimSupervisor(world, self.truth, self.config, loops)
        self.supervisor.bodies_communicate = world.chance(0.5)
        self.supervisor.repeatable = random.Random(f"repeatable {seed}").random() < 0.5
        self.supervisor.rehearsals = random.Random(f"rehearsals {seed}").choice([0, 1, 2, 2])
        if world.chance(0.3):
            self.supervisor.leaves_at = self.truth.leaves_at = shape.randint(1, self.until - 2)
        # Its steps communicate by nothing but protection: where states are passed over nothing holds its ranks together, and who
        # leaves the loop would not miss a rank that has ended before. In a training its collectives do.
        intervals = [(1,), (1,), (2,), (3,), (1, 2, 3), (1, 1, 4)] if self.truth.leaves_at == NO_STEP else [(1,)]
        self.supervisor.intervals = random.Random(f"intervals {seed}").choice(intervals)
        self.truth.interval_max = max(self.supervisor.intervals)
        faults = Faults(self.supervisor)
        for index in range(nnodes + self.config.spares):
            world.at(world.between(0, 0.5), faults.boot, index)
        straggler = random.Random(f"straggler {seed}")
        if self.config.swap_stragglers:
            for _ in range(straggler.choice([1, 1, 2])):
                world.at(straggler.uniform(0.2, 4.0), self.supervisor.straggles, straggler.randrange(self.config.world_size))
        kinds = faults.all() + (faults.of_relays() if self.config.relay_above < _FEW else [])
        kinds += faults.of_racks() if self.config.topology else []
        if excluding is not None:
            for _ in range(excluding.choice([1, 1, 2, 3])):
                world.at(excluding.uniform(1.0, 5.0), faults.lose_excludable)
                world.at(excluding.uniform(1.5, 8.0), faults.miss_excluded)
        staged = random.Random(f"stages {seed}")
        if staged.random() < _STAGED:
            for _ in range(staged.choice([1, 1, 2, 3])):
                world.at(0.0, faults.in_stage, staged.choice(list(Stage)), staged.choice(faults.of_stages()), 12.0)
        suspended = random.Random(f"agents {seed}")
        if suspended.random() < _SUSPENDED:
            for _ in range(suspended.choice([1, 1, 2])):
                world.at(suspended.uniform(0.5, 6.0), faults.suspend_agent)
        moment_s = world.between(0.2, 2.5)
        for _ in range(shape.choice([1, 1, 2, 2, 3, 4, 6])):
            world.at(moment_s, shape.choice(kinds))
            moment_s += shape.choice([world.between(0, 0.1), world.between(0, 1.0), world.between(0, 3.0)])

    def check(self) -> None:
        self.world.run(_BOUND_S)
        state, truth, supervisor = self.supervisor.job.state, self.truth, self.supervisor
        truth.check(state.ending.over, f"not over in {_BOUND_S} s: {state.phase}, {state.recovery.attempt}, {state.roster}")
        if supervisor.exit_code == 0:
            truth.check(state.phase is Phase.END, f"{state.phase}")
            last = {truth.steps[content] for groups in truth.generations.values() for content in groups.resumed.values()}
            finished = {truth.steps.get(truth.committed), max(last)}  # or it was resumed from, sealed in every vault
            left = supervisor.leaves_at != NO_STEP
            truth.check(
                left or self.until in finished or truth.ended_unprotected,
                "done, but the last step was never committed, nor refused",
            )
            without = truth.without_body(supervisor.leaves_at + 1 if left else self.until)
            truth.check(not without, f"the loop body never ran for (rank, step) {without}")
        else:
            nothing_left = (truth.excused or truth.unfit) and state.protection.checkpoint_step == NO_STEP
            never_kept = not truth.committed and bool(state.protection.unprotected)  # what fails then is the script's fault
            aborts = self.config.on_exhausted is OnExhausted.ABORT
            excused = nothing_left or never_kept or aborts or self._ends_unhooked()
            truth.check(excused, f"ended with {supervisor.exit_code} ({supervisor.root_cause})")
        for record in state.recovery.records:
            measured = bool(record.spare) and 0 <= record.exposed_s <= _BOUND_S + supervisor.ahead_s
            truth.check(measured or record.exposed_s == -1, f"exposed for {record.exposed_s} s: {record}")
        lost = sum(record.committed_steps_lost for record in state.recovery.records)
        truth.check(lost == 0 or truth.excused or truth.unfit != set(), f"{lost} committed steps lost")

    def _ends_unhooked(self) -> bool:
        """Returns whether restarts were counted, none having joined, and a process failed, or a node for which no spare was."""
        state, cause = self.supervisor.job.state, self.supervisor.root_cause
        without_spare = cause.startswith("node") and not state.roster.spares()
        return not state.hooked and self.config.max_restarts == 0 and (cause.startswith("rank ") or without_spare)

    def check_replay(self) -> None:
        """The same events make an equal job."""
        job = Job(self.config)
        for event, now_s in self.supervisor.past:
            if event is None:
                job.tick(now_s=now_s)
            else:
                job.handle(event, now_s=now_s)
        self.truth.check(job.state == self.supervisor.job.state, "the replayed job differs")


def run_seeds(first: int, count: int, *, replay_every: int = 20) -> None:
    """Runs that many seeds; the first failure says which one."""
    for seed in itertools.islice(itertools.count(first), count):
        run = Run(seed)
        run.check()
        if seed % replay_every == 0:
            run.check_replay()
