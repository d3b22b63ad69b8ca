"""Hugging Face Accelerate: what `accelerator.prepare` has returned, protected, and the loop over its loader.

run = deadpool.join()  # before the Accelerator, which takes over the process group that it finds
accelerator = Accelerator(gradient_accumulation_steps=2)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
guard = protect(accelerator, model, optimizer, loader, scheduler)
for step, batches in guard.steps(until=1000):
    for batch in batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
"""

from collections.abc import Iterator, Mapping
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderDispatcher
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import DistributedType, send_to_device, synchronize_rng_states
from torch import Generator, nn

from deadpool.host.errors import ConfigError
from deadpool.trainer_hooks.data.sources import LoaderSource, source_of
from deadpool.trainer_hooks.loop import Guard
from deadpool.trainer_hooks.run import joined
from deadpool.trainer_hooks.state.extras import Extra
from deadpool.trainer_hooks.steps import Steps

_KNOWN = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


def protect(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: AcceleratedOptimizer,
    loader: Any,
    scheduler: Any = None,
    *,
    extra: Mapping[str, Extra] | None = None,
    strict: bool = True,
) -> "AcceleratedGuard":
    """Returns the guard of a training whose parts have come from `accelerator.prepare`. Call once, on all ranks, after that.

    ConfigError: deadpool.join() was not called before the Accelerator was made; fp16, whose optimizer steps by another way;
    DeepSpeed, FSDP or Megatron; a loader that was not prepared, or whose batches one rank reads for all (`dispatch_batches`).
    """
    run = joined()
    if run.world_size != accelerator.num_processes:
        raise ConfigError("protect(accelerator, ...): call deadpool.join() before the Accelerator is made")
    if accelerator.distributed_type not in _KNOWN:
        raise ConfigError(f"protect(accelerator, ...): {accelerator.distributed_type} is not supported here; DDP is")
    if not isinstance(optimizer, AcceleratedOptimizer):
        raise ConfigError("protect(accelerator, ...): the optimizer is not from accelerator.prepare(...)")
    if optimizer.scaler is not None:
        raise ConfigError("protect(accelerator, ...): mixed_precision='fp16' is not supported; use 'bf16'")
    source = _Prepared(loader)
    extras: dict[str, Extra] = {**(extra or {}), "accelerator": _Counter(accelerator)}
    if scheduler is not None:
        extras["scheduler"] = scheduler
    guard = run.protect(model=model, optimizer=optimizer.optimizer, extra=extras, strict=strict)
    return AcceleratedGuard(guard, source, accelerator.gradient_accumulation_steps)


class AcceleratedGuard:
    """A `deadpool.Guard` whose steps are over the prepared loader. All else of a guard is there as well."""

    def __init__(self, guard: Guard, source: LoaderSource, accumulate: int) -> None:
        self._guard, self._source, self._accumulate = guard, source, accumulate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guard, name)

    def steps(self, *, until: int, start: int = 0, rehearse: bool = False) -> Steps:
        """Returns an iterator over (step, batch), as Guard.steps; where gradients are accumulated, over (step, list of batches).

        A step always has `gradient_accumulation_steps` batches; those of the next epoch follow those of the last.
        """
        return self._guard.steps(self._source, until=until, start=start, accumulate=self._accumulate, rehearse=rehearse)


class _Prepared(LoaderSource):
    """A loader from `accelerator.prepare`. Its own iterator reads a batch ahead; what it wraps is iterated in its place.

    It has the ranks draw the same order by giving them rank 0's generator when an epoch begins. That is done once, here: from
    then on all draw the same from it.
    """

    def __init__(self, loader: Any) -> None:
        if isinstance(loader, DataLoaderDispatcher):
            raise ConfigError(
                "protect(accelerator, ...): rank 0 reads the batches of this loader for all; use "
                "DataLoaderConfiguration(dispatch_batches=False)"
            )
        base = getattr(loader, "base_dataloader", None)
        if base is None:
            raise ConfigError("protect(accelerator, ...): the loader is not from accelerator.prepare(...)")
        kinds = [str(getattr(kind, "value", kind)) for kind in loader.rng_types or ()]
        if set(kinds) - {"generator"}:
            raise ConfigError(f"protect(accelerator, ...): rng_types={kinds}: only 'generator' is supported")
        if loader.synchronized_generator is not None and kinds:
            synchronize_rng_states(kinds, loader.synchronized_generator)
        self._loader, self._base = loader, source_of(base)

    def begin(self, seed: int, epoch: int, taken: int, state: Any) -> Iterator[Any]:
        batches = self._base.begin(seed, epoch, taken, state)
        return map(self._placed, batches)

    def forget(self) -> None:
        self._base.forget()

    def generators(self) -> list[Generator]:
        return self._base.generators()

    def state(self) -> Any:
        return self._base.state()

    def _placed(self, batch: Any) -> Any:
        if self._loader.device is None:
            return batch
        return send_to_device(batch, self._loader.device, non_blocking=self._loader._non_blocking)


class _Counter:
    """How many batches the accelerator has counted, which decides in which it steps. A step may be left in the middle of them."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._accelerator.step, "sync_gradients": self._accelerator.sync_gradients}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._accelerator.step = state_dict["step"]
        self._accelerator.gradient_state._set_sync_gradients(state_dict["sync_gradients"])
