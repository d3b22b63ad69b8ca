"""A node's core (agent/core.py), driven by a test: its orders come from there, and its processes do what the test says."""

from collections.abc import Iterable

from deadpool.agent.core import NodeCore
from deadpool.agent.events import (
    Command,
    Configure,
    Event,
    OrderReceived,
    ProcessExited,
    ProcessForked,
    ProcessRegistered,
    Report,
    StartProcess,
    Tell,
)
from deadpool.agent.gathering import WAIT_S
from deadpool.proto.config import JobConfig, to_json
from deadpool.proto.messages import (
    AgentMessage,
    Assign,
    Order,
    Placement,
    RankOrder,
    StartRanks,
    Welcome,
)

CONFIG = JobConfig(job_id="j", nnodes=1, nproc_per_node=2, command=("s.py",), python="python", log_dir="logs")


def placement(rank: int) -> Placement:
    return Placement(rank=rank, local_rank=rank % 2, node_id="node0", node_rank=rank // 2)


class Node:
    """A core whose processes do what the test says."""

    def __init__(self, config: JobConfig = CONFIG) -> None:
        self.core = NodeCore(node_id="node0", hint=1, host="h")
        self.now_s = 100.0
        assert self.order(Welcome(config_json=to_json(config), generation=0)) == [Configure(config=config)]

    def event(self, event: Event) -> list[Command]:
        return self.core.handle(event, now_s=self.now_s)

    def soon(self) -> list[Command]:
        """Returns what it does when it has waited for its other ranks' words."""
        self.now_s += WAIT_S
        return self.core.tick(now_s=self.now_s)

    def order(self, order: Order) -> list[Command]:
        return self.event(OrderReceived(order=order))

    def start(self, *ranks: int, generation: int = 1) -> list[Command]:
        return self.order(
            StartRanks(
                generation=generation, world_size=2, placements=tuple(map(placement, ranks)), store_host="h", store_port=1,
                master_node_count=1, restart_count=0,
            )
        )  # fmt: skip

    def assign(self, *ranks: int, generation: int) -> list[Command]:
        return self.order(
            Assign(
                generation=generation, world_size=2, placements=tuple(map(placement, ranks)), hint_step=9, master_node_count=1,
                restart_count=0, store_host="h", store_port=1,
            )
        )  # fmt: skip

    def get_hot(self, *ranks: int, generation: int = 1) -> list[Command]:
        return self.order(
            Assign(
                generation=generation, world_size=2, placements=tuple(map(placement, ranks)), hint_step=9, master_node_count=1,
                restart_count=0, hot=True,
            )
        )  # fmt: skip

    def run(self, commands: Iterable[Command], *, register: bool = True) -> list[int]:
        """Forks and registers what the commands start; returns the processes."""
        started = [command.process for command in commands if isinstance(command, StartProcess)]
        for process in started:
            self.event(ProcessForked(process=process, pid=1000 + process))
            if register:
                self.event(ProcessRegistered(process=process, pid=1000 + process))
        return started

    def exit(self, process: int, exit_code: int = 137) -> list[Command]:
        return self.event(
            ProcessExited(process=process, exit_code=exit_code, signal=0, error="", log_tail="", step=5, commit_step=4)
        )


def to_ranks(commands: list[Command]) -> list[tuple[int, RankOrder]]:
    return [(command.process, command.order) for command in commands if isinstance(command, Tell)]


def reports(commands: list[Command]) -> list[AgentMessage]:
    return [command.message for command in commands if isinstance(command, Report)]
