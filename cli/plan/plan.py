"""What deadpool-launch is about to do, as values: the job, and the way in which its nodes are started."""

from dataclasses import dataclass

from deadpool.deploy.slurm.allocation import Allocation
from deadpool.proto.config import JobConfig

JOIN_TIMEOUT_S = 600.0  # torchrun's


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """`given`: as the command line has it. `address`: a number. `here`: it is this machine's. `index`: of this node, -1: any.
    `local`: the address that this machine is to publish, "" for what suits.

    `join_timeout_s`: for a supervisor to answer there.
    """

    given: str
    address: str
    port: int
    here: bool
    index: int = -1
    local: str = ""
    join_timeout_s: float = JOIN_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class Standalone:
    """All nodes on this machine."""


@dataclass(frozen=True, slots=True)
class OverSsh:
    """A node on each host, started from here."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InAllocation:
    """The nodes of a Slurm allocation. `poll_s`: time between two questions about them. `requeue`: a job whose time is up."""

    allocation: Allocation
    poll_s: float
    requeue: bool


@dataclass(frozen=True, slots=True)
class ByHand:
    """This machine's node; the others are started on theirs, by the same command."""

    rendezvous: Rendezvous


Way = Standalone | OverSsh | InAllocation | ByHand


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
    """`remarks`: a line for each option that changes nothing. `port`: the supervisor's, None for any free one.

    `dashboard`: HOST:PORT of the page, None for none.
    """

    config: JobConfig
    way: Way
    remarks: tuple[str, ...]
    port: int | None
    dashboard: str | None
    summary_json: str | None
    interface: str | None
    preflight: bool

    @property
    def for_supervisor(self) -> list[str]:
        """Returns the supervisor's own arguments, but for its port."""
        given = {"--summary-json": self.summary_json, "--dashboard": self.dashboard}
        return [word for option, value in given.items() if value is not None for word in (option, value)]

    @property
    def size(self) -> str:
        def count(number: int, noun: str) -> str:
            return f"{number} {noun}" + ("s" if number != 1 else "")

        config = self.config
        spares = f", {count(config.spares, 'spare')}" if config.spares else ""
        return f"{count(config.nnodes, 'node')} x {count(config.nproc_per_node, 'rank')}{spares}"
