"""What is simulated: machines that fail and are repaired, and how long a recovery takes under each strategy. Values only."""

from dataclasses import dataclass
from enum import StrEnum

DAY_S = 86_400.0
HOUR_S = 3_600.0


class Strategy(StrEnum):
    HOT_SWAP = "hot-swap"  # a spare takes the dead node's place, survivors keep their processes
    MEMORY_RESTART = "memory-restart"  # all processes start anew, from states kept in the hosts' memory
    EXCLUDE = "exclude"  # the data-parallel replicas of lost nodes are left out until the nodes are repaired
    CHECKPOINT_RESTART = "checkpoint-restart"  # all processes start anew, from the last persistent checkpoint


NEEDS_EVERY_NODE = frozenset(Strategy) - {Strategy.EXCLUDE}
KEEPS_STATES_IN_MEMORY = frozenset(Strategy) - {Strategy.CHECKPOINT_RESTART}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedCluster:
    """A job and the machines under it. While it runs, nodes fail independently, and whole racks do; idle spares do not fail.

    `transient_share`: of the nodes' failures, those after which the node is whole (a process died): no spare is needed.
    `rack_nodes`: nodes that can be lost together; 0: none. `replica_distance`: a node's replica is kept this many nodes further.
    `nodes_per_replica`: how many nodes one data-parallel replica fills: what `exclude` loses with a node.
    """

    nodes: int
    gpus_per_node: int
    spares: int
    steps: int
    step_s: float
    failures_per_node_day: float
    transient_share: float
    rack_nodes: int
    failures_per_rack_day: float
    repair_s: float
    checkpoint_every: int
    checkpoint_s: float
    replica_distance: int
    nodes_per_replica: int

    @property
    def racks(self) -> int:
        return -(-self.nodes // self.rack_nodes) if self.rack_nodes else 0

    @property
    def replicas(self) -> int:
        """How many data-parallel replicas train."""
        return max(1, self.nodes // self.nodes_per_replica)

    @property
    def ideal_s(self) -> float:
        """How long the training takes when nothing fails and nothing is written."""
        return self.steps * self.step_s

    @property
    def failures_per_s(self) -> float:
        """How often anything fails while the job runs."""
        return (self.nodes * self.failures_per_node_day + self.racks * self.failures_per_rack_day) / DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryTimes:
    """Seconds from a failure to the first new step, without the steps that are done again.

    `transient_s`: a hot swap in which a process comes back on its own node.
    """

    restart_s: float
    memory_restart_s: float
    exclude_s: float
    swap_s: float
    transient_s: float

    def of(self, strategy: Strategy, *, transient: bool) -> float:
        match strategy:
            case Strategy.CHECKPOINT_RESTART:
                return self.restart_s
            case Strategy.MEMORY_RESTART:
                return self.memory_restart_s
            case Strategy.EXCLUDE:
                return self.exclude_s
            case Strategy.HOT_SWAP:
                return self.transient_s if transient else self.swap_s
