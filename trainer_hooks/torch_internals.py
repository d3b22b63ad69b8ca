"""The private names of torch that DeadPool uses: a torch that lacks some fails a test with a list, not a recovery in the middle.

What is imported from a private module is imported here. What is an attribute of an object of torch's is used where it is needed,
and listed in USED.
"""

import importlib
import inspect
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FakeProcessGroup, HashStore, PrefixStore, Store, TCPStore
from torch.autograd import Variable
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import GroupName
from torch.nn.functional import embedding
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves

__all__ = ["FakeProcessGroup", "GroupName", "HashStore", "PrefixStore", "Store", "TCPStore", "TorchDispatchMode", "tree_leaves"]

# Each private name: a module's, a class's, or (":") an attribute that the objects of a class are given.
USED = (
    "torch._C._distributed_c10d.FakeProcessGroup._create_internal",
    "torch._C._distributed_c10d.HashStore",
    "torch._C._distributed_c10d.PrefixStore",
    "torch._C._distributed_c10d.Store",
    "torch._C._distributed_c10d.TCPStore",
    "torch._dynamo.trace_rules.add",
    "torch._foreach_copy_",
    "torch._inductor.cpp_builder.CppBuilder:_output",
    "torch._inductor.cpp_builder.CppBuilder.build",
    "torch._inductor.cpp_builder.CppBuilder.get_target_file_path",
    "torch.Tensor._backward_hooks",
    "torch.Tensor._version",
    "torch.UntypedStorage._cdata",
    "torch.autograd.Variable._execution_engine.queue_callback",
    "torch.distributed.ProcessGroup._get_backend",
    "torch.distributed.ProcessGroup._get_sequence_number_for_group",
    "torch.distributed.ProcessGroup._has_hooks",
    "torch.distributed.ProcessGroup._register_backend",
    "torch.distributed.ProcessGroup._register_on_completion_hook",
    "torch.distributed.ProcessGroup._set_default_backend",
    "torch.distributed.ProcessGroup._set_group_desc",
    "torch.distributed.ProcessGroup._set_group_name",
    "torch.distributed.ProcessGroup._wait_for_pending_works",
    "torch.distributed.ProcessGroupGloo._Options._devices",
    "torch.distributed.ProcessGroupGloo._Options._timeout",
    "torch.distributed.ProcessGroupGloo._Options.global_ranks_in_group",
    "torch.distributed.ProcessGroupGloo._set_default_timeout",
    "torch.distributed.ProcessGroupNCCL._group_end",
    "torch.distributed.ProcessGroupNCCL._group_start",
    "torch.distributed.Logger._set_comm_hook_name",
    "torch.distributed.Logger._set_static_graph",
    "torch.distributed.Reducer._autograd_hook",
    "torch.distributed.Reducer._check_reducer_finalized",
    "torch.distributed.Reducer._delay_all_reduce",
    "torch.distributed.Reducer._rebuild_buckets",
    "torch.distributed.Reducer._reset_state",
    "torch.distributed.Reducer._set_static_graph",
    "torch.distributed.Work._get_duration",
    "torch.distributed._register_comm_hook",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed.distributed_c10d.GroupName",
    "torch.distributed.distributed_c10d._check_p2p_op_list",
    "torch.distributed.distributed_c10d._coalescing_manager",
    "torch.distributed.distributed_c10d._get_default_group",
    "torch.distributed.distributed_c10d._tensor_to_object",
    "torch.distributed.distributed_c10d._world.group_count",
    "torch.distributed.fsdp.FSDPModule._get_fsdp_state",
    "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam:_module_info",
    "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam:_unsharded_param",
    "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup:_partial_reduce_output",
    "torch.distributed.fsdp._fully_shard._fsdp_param_group.FSDPParamGroup._to_sharded",
    "torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState:_fsdp_param_group",
    "torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState:_is_root",
    "torch.distributed.optim.ZeroRedundancyOptimizer._clear_cache",
    "torch.distributed.pipelining.schedules._PipelineSchedule",
    "torch.distributed.tensor.DTensor._local_tensor",
    "torch.distributed.tensor._utils.compute_local_shape_and_global_offset",
    "torch.distributed.tensor.placement_types._StridedShard",
    "torch._ops.OpOverload:_schema",
    "torch.nn.Module:_buffers",
    "torch.nn.Module:_modules",
    "torch.nn.Module:_non_persistent_buffers_set",
    "torch.nn.Module:_parameters",
    "torch.nn.Module._save_to_state_dict",
    "torch.nn.init._no_grad_trunc_normal_",
    "torch.nn.parallel.DistributedDataParallel:_comm_hooks",
    "torch.nn.parallel.DistributedDataParallel:_has_rebuilt_buckets",
    "torch.nn.parallel.DistributedDataParallel:_join_config",
    "torch.nn.parallel.DistributedDataParallel:_static_graph_delay_allreduce_enqueued",
    "torch.nn.parallel.DistributedDataParallel._build_debug_param_to_name_mapping",
    "torch.nn.parallel.DistributedDataParallel._build_params_for_reducer",
    "torch.nn.parallel.DistributedDataParallel._ddp_init_helper",
    "torch.nn.parallel.DistributedDataParallel._get_ddp_logging_data",
    "torch.nn.parallel.DistributedDataParallel._set_ddp_runtime_logging_sample_rate",
    "torch.numa.binding._maybe_apply_numa_binding_to_current_process",
    "torch.optim.Optimizer:_optimizer_state_dict_post_hooks",
    "torch.optim.Optimizer:_optimizer_step_post_hooks",
    "torch.optim.Optimizer:_optimizer_step_pre_hooks",
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch.utils._python_dispatch._get_current_dispatch_mode",
    "torch.utils._python_dispatch.is_traceable_wrapper_subclass",
    "torch.utils._pytree.tree_leaves",
    "torch.utils.data.DataLoader:_iterator",
)

_GROUPS_PER_GENERATION = 1 << 20
_DDP_SAMPLE_RATE = 100  # as torch has it
_LAYOUT = "rebuilt_per_bucket_param_indices"


def missing() -> list[str]:
    """Returns which of these names the installed torch does not have."""
    nccl = "torch.distributed.ProcessGroupNCCL"
    wanted = (name for name in USED if dist.is_nccl_available() or not name.startswith(nccl))
    return [name for name in wanted if not _is_there(name)]


def _is_there(name: str) -> bool:
    name, _, given = name.partition(":")
    parts = name.split(".")
    known = 1
    while known < len(parts) and _module(".".join(parts[: known + 1])) is not None:
        known += 1
    found: Any = _module(".".join(parts[:known]))
    for part in parts[known:]:
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return not given or given in _source(found)


def _source(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except OSError:  # it was made by a call
        return inspect.getsource(importlib.import_module(kind.__module__))


def _module(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own import of its optimizers uses what torch deprecates
        try:
            return importlib.import_module(name)
        except ImportError:
            return None


def count_groups_from(generation: int) -> None:
    """Has c10d name the groups that are made in this generation alike on all ranks, whatever each has made before."""
    world = distributed_c10d._world
    world.group_count = max(world.group_count, generation * _GROUPS_PER_GENERATION)


def innermost_dispatch_mode() -> Any:
    """Returns the TorchDispatchMode of this thread that was entered last; None where there is none."""
    return _get_current_dispatch_mode()


def hide_from_dynamo(package: str) -> None:
    """Has Dynamo leave this package's functions as they are: it neither compiles them nor traces into them."""
    from torch._dynamo import trace_rules  # takes as long to import as torch; who calls this needs it anyway

    trace_rules.add(package)


def library_builder() -> Any:
    """Returns the class whose `build` has a compiler write what inductor has generated to `get_target_file_path()`."""
    from torch._inductor.cpp_builder import CppBuilder  # Dynamo has imported it, which takes as long to import as torch

    return CppBuilder


def local_place(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns shape and offset of a DTensor's local part in the whole."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # not everyone who is here needs DTensor

    place: tuple[tuple[int, ...], tuple[int, ...]] = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return place


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
    if _LAYOUT not in ddp._get_ddp_logging_data():  # all forwards were within no_sync(), as in a pipeline: the reducer saw none
        ddp.reducer.prepare_for_forward()
        ddp.logger.set_runtime_stats_and_log()
    ddp._set_ddp_runtime_logging_sample_rate(_DDP_SAMPLE_RATE)
    return str(ddp._get_ddp_logging_data()[_LAYOUT])


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


def ddp_joined(ddp: Any) -> bool:
    """Returns whether the script has used the DDP within its join()."""
    return bool(ddp._join_config.enable)


def ddp_backward(ddp: Any, parameters: Sequence[tuple[Tensor, bool]]) -> None:
    """A backward pass in which nothing but zeros become ready, in this order: (parameter, whether its gradient is sparse)."""
    ddp.reducer.prepare_for_backward([])
    for parameter, sparse in parameters:
        value: Tensor = parameter * 0
        if sparse:
            value = embedding(torch.zeros(1, dtype=torch.long, device=parameter.device), parameter, sparse=True) * 0
        if ddp.static_graph and not ddp._static_graph_delay_allreduce_enqueued and parameter is parameters[-1][0]:
            after = ddp.reducer._delay_all_reduce
            value.register_hook(lambda _, after=after: Variable._execution_engine.queue_callback(after))  # type: ignore[no-untyped-call]
            ddp._static_graph_delay_allreduce_enqueued = True
        torch.autograd.backward(value.sum())


def ddp_forget_pass(ddp: Any) -> None:
    """Has the reducer expect no gradients, whatever it was prepared for. It forgets its own layout, if it has made one."""
    ddp.reducer._reset_state()


def ddp_used(ddp: Any, parameters: Sequence[Tensor], used: Iterable[int]) -> None:
    """Tells a reducer that looks for unused parameters, and expects no gradients now, that these have been used.

    No parameter has a gradient before.
    """
    for index in used:
        parameters[index].grad = torch.zeros_like(parameters[index])
        ddp.reducer._autograd_hook(index)


def ddp_end_pass(ddp: Any, parameters: Sequence[Tensor], sparse: Sequence[bool]) -> bool:
    """Ends whatever pass has begun by one in which every gradient is zero. The parameters' own hooks do not run.

    No parameter has a gradient before. Returns False when it could not be ended: with static_graph one may be expected twice.
    """
    for parameter, is_sparse in zip(parameters, sparse, strict=True):
        if is_sparse:
            parameter.grad = torch.zeros(parameter.shape, dtype=parameter.dtype, layout=torch.sparse_coo, device=parameter.device)
    reducer = ddp.reducer
    reducer.prepare_for_backward([])

    def every_gradient_is_ready(_: Tensor) -> None:
        for index in range(len(parameters)):
            reducer._autograd_hook(index)

    begin = torch.zeros((), device=parameters[0].device, requires_grad=True)
    through = begin * 1
    through.register_hook(every_gradient_is_ready)  # type: ignore[no-untyped-call]  # a pass can end only within a backward
    try:
        torch.autograd.backward(through)
        reducer._check_reducer_finalized()
    except RuntimeError:
        return False
    return True
