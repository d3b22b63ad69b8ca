"""DeepSpeed's engine, protected: ZeRO-1 and ZeRO-2, fp32, bf16 or fp16. What a script changes:

    import deadpool
    from deadpool.integrations.deepspeed import protect

    deadpool.join()  # before deepspeed.initialize(...), which then uses these groups
    engine, _, _, _ = deepspeed.initialize(model=model, config=config, ...)
    guard = protect(engine)
    for step, loss in guard.run(train_step, until=1000): ...  # train_step: all micro-steps, up to the engine's optimizer step

The fp32 partitions are parameters of the optimizer that DeepSpeed wraps. What the engine and its wrapper know besides (counters,
loss scale, schedule) is one more part of the state; gradients that a broken step has left in their buckets are dropped.
"""

from collections.abc import Mapping
from typing import Any

import torch
from deepspeed.runtime.pipe.engine import PipelineEngine

import deadpool
from deadpool.trainer_hooks.state.extras import Extra

_COUNTERS = ("global_steps", "global_samples", "micro_steps", "skipped_steps", "_step_applied", "_global_grad_norm")
_WRAPPER = (
    "overflow",
    "micro_step_id",
    "_global_grad_norm",
    "custom_loss_scaler",
    "external_loss_scale",
    "cur_iter",
    "cur_scale",
)
_SCALERS = ("loss_scaler", "loss_scale_config")  # which of them there is depends on the precision
_BUCKETS = ("averaged_gradients", "all_grad_tensors")


def protect(engine: Any, *, extra: Mapping[str, Extra] | None = None, strict: bool = True) -> deadpool.Guard:
    """Returns the guard of a DeepSpeed engine's training; the rest is as in Run.protect.

    ConfigError, with which the job ends (exit code 2): it does what cannot be brought back (ZeRO-3, offloading, a pipeline).
    """
    run = deadpool.joined()
    if (refused := _refused(engine)) is not None:
        run.refuse(refused)
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    own: dict[str, Extra] = {"deepspeed": EngineState(engine)}
    scheduler = engine.lr_scheduler
    if scheduler is not None:
        own["scheduler"] = scheduler
    autocast = getattr(engine.optimizer, "torch_autocast_gradscaler", None) or engine.torch_autocast_z0_gradscaler
    if autocast is not None:
        own["scaler"] = autocast
    return run.protect(model=engine.module, optimizer=inner, extra={**own, **(extra or {})}, strict=strict)


def _refused(engine: Any) -> str | None:
    """Returns what of this engine no recovery could bring back, and what to do."""
    if isinstance(engine, PipelineEngine):
        return "DeepSpeed's PipelineEngine cannot be protected; pipelines of torch.distributed.pipelining can"
    if engine.zero_optimization_stage() >= 3:
        return "DeepSpeed's ZeRO-3 cannot be protected: use stage 1 or 2, or FSDP2 (torch.distributed.fsdp.fully_shard)"
    if engine.zero_offload_optimizer() is not None or engine.zenflow:
        return "DeepSpeed's offload_optimizer cannot be protected; leave it out of zero_optimization"
    if engine.random_ltd_enabled():
        return "DeepSpeed's random-LTD cannot be protected; leave it out of data_efficiency"
    return None


class UnfinishedStep:
    """Stands for gradients that wait in the engine for the rest of their optimizer step. train_step must make all of it."""


class EngineState:
    """What the engine and the optimizer that it has made know beside tensors."""

    def __init__(self, engine: Any) -> None:
        self._engine, self._optimizer = engine, engine.optimizer

    def state_dict(self) -> dict[str, Any]:
        return {
            "engine": _values(self._engine, _COUNTERS),
            "optimizer": _values(self._optimizer, _WRAPPER),
            "scale": {name: _plain(vars(self._scaler(name))) for name in self._scalers()},
            **self._unfinished(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self._engine).update(state["engine"])
        vars(self._optimizer).update(state["optimizer"])
        for name, values in state["scale"].items():
            vars(self._scaler(name)).update(values)
        self._forget_gradients()

    def _unfinished(self) -> dict[str, Any]:
        """Returns what no snapshot can hold, so that it is named: a step that has ended between two optimizer steps."""
        every, done = self._engine.gradient_accumulation_steps(), self._engine.micro_steps
        if not self._engine.managed_gradient_accumulation() or done % every == 0:
            return {}
        return {f"gradient_accumulation_steps={every}, and train_step has ended after micro-step {done}": UnfinishedStep()}

    def _scalers(self) -> list[str]:
        return [name for name in _SCALERS if getattr(self._optimizer, name, None) is not None]

    def _scaler(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def _forget_gradients(self) -> None:
        """Makes the buckets as they are between two steps, whatever a step that was broken off has left there."""
        optimizer = self._optimizer
        optimizer.zero_grad()
        for name in _BUCKETS:
            kept = getattr(optimizer, name, {})
            kept.update(dict.fromkeys(kept))
        for bucket in getattr(optimizer, "ipg_buckets", {}).values():
            bucket.clear()
        getattr(optimizer, "extra_large_param_to_reduce", {}).clear()
        if hasattr(optimizer, "_backward_hook_state"):
            optimizer._backward_hook_state.backward_active_depth = 0
        if hasattr(optimizer, "params_already_reduced"):
            optimizer.params_already_reduced[:] = [False] * len(optimizer.params_already_reduced)
        if hasattr(optimizer, "_hp_optimizer_states_linked"):
            optimizer._hp_optimizer_states_linked = False  # the next step links what was restored


def _values(owner: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: vars(owner)[name] for name in names if name in vars(owner)}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if isinstance(value, (bool, int, float, str, torch.Tensor, type(None)))}
