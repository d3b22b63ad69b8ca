"""The role that a process gets: as a rank of a start, or as a joiner in a recovery. Pure."""

from deadpool.agent.processes.environment import rank_environment, store_environment
from deadpool.proto.config import JobConfig
from deadpool.proto.messages import NO_STEP, Assign, Placement, Role, StartRanks


def starting_role(config: JobConfig, order: StartRanks, placement: Placement, visible_devices: str = "") -> Role:
    """Returns the role of a rank that starts together with all others, on the generation's store."""
    return Role(
        generation=order.generation,
        rank=placement.rank,
        local_rank=placement.local_rank,
        world_size=order.world_size,
        muted=False,
        store_host=order.store_host,
        store_port=order.store_port,
        hint_step=NO_STEP,
        placement=placement,
        environment=_environment(config, order, placement, visible_devices),
    )


def joining_role(config: JobConfig, order: Assign, placement: Placement, visible_devices: str = "") -> Role:
    """Returns the role of a process that takes a rank over: it rehearses muted, and learns of its own store with Reform."""
    return Role(
        generation=order.generation,
        rank=placement.rank,
        local_rank=placement.local_rank,
        world_size=order.world_size,
        muted=True,
        store_host="",
        store_port=0,
        hint_step=order.hint_step,
        placement=placement,
        environment=_environment(config, order, placement, visible_devices),
        hot=order.hot,
    )


def _environment(config: JobConfig, order: StartRanks | Assign, placement: Placement, visible_devices: str) -> dict[str, str]:
    return rank_environment(
        config,
        placement,
        world_size=order.world_size,
        master_node_count=order.master_node_count,
        restart_count=order.restart_count,
        visible_devices=visible_devices,
    ) | store_environment(order.store_host, order.store_port)
