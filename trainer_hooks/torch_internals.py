"""Every private name of torch that DeadPool uses, in one place: a torch that lacks some fails a test, not a recovery."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable
from torch.distributed import distributed_c10d

_GROUPS_PER_GENERATION = 1 << 20
_DDP_SAMPLE_RATE = 100  # as torch has it


def count_groups_from(generation: int) -> None:
    """Has c10d name the groups that are made in this generation alike on all ranks, whatever each has made before."""
    world = distributed_c10d._world
    world.group_count = max(world.group_count, generation * _GROUPS_PER_GENERATION)


def hide_from_dynamo(package: str) -> None:
    """Has Dynamo leave this package's functions as they are: it neither compiles them nor traces into them."""
    from torch._dynamo import trace_rules  # takes as long to import as torch; who calls this needs it anyway

    trace_rules.add(package)


# ---------------------------------------------------------------- DDP


def ddp_parameters(ddp: Any) -> tuple[list[Tensor], list[bool]]:
    """Returns the parameters as the reducer numbers them, and for each whether its gradient is sparse."""
    parameters, sparse = ddp._build_params_for_reducer()
    return list(parameters), list(sparse)


def ddp_layout(ddp: Any) -> str:
    """Returns the parameters of each bucket ("5 4 3, 2 1 0") once DDP has made its own layout, "" before."""
    if not ddp._has_rebuilt_buckets:
        return ""
    ddp._set_ddp_runtime_logging_sample_rate(1)  # else it may be written down a hundred forwards later
    ddp.logger.set_runtime_stats_and_log()
    ddp._set_ddp_runtime_logging_sample_rate(_DDP_SAMPLE_RATE)
    return str(ddp._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"])


def ddp_hooks(ddp: Any) -> list[tuple[Any, Any]]:
    """Returns (communication hook, its state) of those that the script has registered."""
    return list(ddp._comm_hooks)


def ddp_begin_anew(ddp: Any, parameters: list[Tensor], sparse: list[bool]) -> None:
    """Gives the DDP a reducer that has seen nothing yet, and no communication hook; the old one takes its own hooks away."""
    ddp._ddp_init_helper(parameters, sparse, ddp._build_debug_param_to_name_mapping(parameters), ddp.static_graph)
    ddp._has_rebuilt_buckets = False
    if ddp.static_graph:
        ddp._static_graph_delay_allreduce_enqueued = False
        ddp.reducer._set_static_graph()
        ddp.logger._set_static_graph()


def ddp_hooks_again(ddp: Any) -> None:
    """Registers the script's communication hooks with the new reducer."""
    for hook, state in ddp._comm_hooks:
        ddp.logger._set_comm_hook_name(hook.__qualname__)
        dist._register_comm_hook(ddp.reducer, state, hook)  # type: ignore[attr-defined]


def ddp_forward_begins(ddp: Any) -> None:
    """What DDP.forward does before the model's: the layout is made here if all is there for it."""
    ddp.reducer.prepare_for_forward()
    if ddp.reducer._rebuild_buckets():
        ddp._has_rebuilt_buckets = True


def ddp_backward(ddp: Any, parameters: Sequence[Tensor]) -> None:
    """A backward pass in which nothing but zeros become ready, in this order."""
    ddp.reducer.prepare_for_backward([])
    for parameter in parameters:
        value: Tensor = parameter * 0
        if ddp.static_graph and not ddp._static_graph_delay_allreduce_enqueued and parameter is parameters[-1]:
            after = ddp.reducer._delay_all_reduce
            value.register_hook(lambda _, after=after: Variable._execution_engine.queue_callback(after))  # type: ignore[no-untyped-call]
            ddp._static_graph_delay_allreduce_enqueued = True
        torch.autograd.backward(value.sum())
