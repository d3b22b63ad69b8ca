"""Every private name of torch that DeadPool uses, in one place: a torch that lacks some fails a test, not a recovery."""

from torch.distributed import distributed_c10d

_GROUPS_PER_GENERATION = 1 << 20


def count_groups_from(generation: int) -> None:
    """Has c10d name the groups that are made in this generation alike on all ranks, whatever each has made before."""
    world = distributed_c10d._world
    world.group_count = max(world.group_count, generation * _GROUPS_PER_GENERATION)


def hide_from_dynamo(package: str) -> None:
    """Has Dynamo leave this package's functions as they are: it neither compiles them nor traces into them."""
    from torch._dynamo import trace_rules  # takes as long to import as torch; who calls this needs it anyway

    trace_rules.add(package)
