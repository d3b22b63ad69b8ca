"""The training state of one rank: models, optimizers, random generators, and what the script registers beside them.

What is captured is what the framework would give back by its own state_dict, in every state that it can be in at a boundary. A
tensor is an item of its own (items.py); everything else is metadata, of which a copy is taken.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from deadpool.host.errors import ConfigError, SnapshotError
from deadpool.proto.vault.layout import Item
from deadpool.trainer_hooks.state import coverage, optimizers, pipelines, random_state
from deadpool.trainer_hooks.state.extras import Extra, stateful
from deadpool.trainer_hooks.state.fit import Fitting
from deadpool.trainer_hooks.state.growth import Growth, expected_growth
from deadpool.trainer_hooks.state.inventory import First, Inventory
from deadpool.trainer_hooks.state.items import Held, path_of, put, type_name
from deadpool.trainer_hooks.state.metadata import GAPS, Meta, check_gaps
from deadpool.trainer_hooks.state.modules import (
    GRADIENT,
    PARAMETER,
    conditions,
    drop_gathered,
    restore_conditions,
    unreduced,
)
from deadpool.trainer_hooks.state.optimizers import parameters_of
from deadpool.trainer_hooks.state.storable import decode, encode
from deadpool.trainer_hooks.state.structure import Structure

log = logging.getLogger(__name__)


class TrainingState:
    """`strict`: what a snapshot would not hold is a gap of the metadata, which refuses the state; else it is a warning."""

    def __init__(
        self,
        *,
        models: Mapping[str, nn.Module],
        optimizers: Mapping[str, Optimizer],
        extra: Mapping[str, Extra],
        strict: bool = True,
    ) -> None:
        for name in (*models, *optimizers):
            if set(name) & set("/@.") or not name:
                raise ConfigError(
                    f"protect(): {name!r} cannot be the name of a model or optimizer: it is empty or has one of / @ ."
                )
        self.models = models
        self.optimizers = _with_nested(optimizers)
        self.extra = stateful(extra)
        self._strict = strict
        self._warned: set[str] = set()
        self._own_optimizers = tuple(optimizers.values())  # without those that they wrap
        self._stepped: list[Optimizer] = []  # in the step under way
        self._scales: dict[str, float] = {}  # of gradient scalers, in the state captured or restored last
        self._scales_before: dict[str, float] = {}  # those that the step under way began with
        self._now = Inventory(self.models, self.optimizers)
        self._first = First(self._now)
        self._gaps: list[str] | None = None  # of _now, and its structure, packed
        self._structure: Tensor | None = None
        pipelines.watch()

    def step_begins(self) -> None:
        """A step is attempted."""
        self._stepped.clear()
        self._scales_before = self._scales

    def optimizer_steps(self, optimizer: Optimizer) -> None:
        """An optimizer uses the gradients of its parameters: nobody needs what is left of them."""
        self._stepped.append(optimizer)

    def held(self) -> list[Held]:
        """Returns every tensor of the state, each once, in an order that depends on the construction only.

        Gradients that no optimizer has used in the step before wait for a later one: they are among them. The same list object
        as before when the process still holds the same tensors, in the same memory.
        """
        now = self._inventory()
        if (waiting := self._unused_gradients(now)) != now.waiting:
            self._look_again(waiting)
        return self._now.held

    def capture_meta(self) -> Meta:
        """Returns everything that is not a tensor of `held`, which was called just before. A copy: what changes later does not
        change it.
        """
        now = self._now
        left_out: list[str] = []
        meta: Meta = {
            "structure": self._packed_structure(),
            "conditions": conditions(now.modules, now.wrappers),
            "pipelines": pipelines.conditions(),
            "modules": {
                path: encode(module.get_extra_state(), f"{path}.get_extra_state()", left_out)
                for path, module in now.stateful_modules
            },
            "optimizers": {
                name: optimizers.capture(name, optimizer, now.names, now.plain.keys(), left_out)
                for name, optimizer in self.optimizers.items()
            },
            "extra": {name: encode(each.state_dict(), f"extra[{name!r}]", left_out) for name, each in self.extra.items()},
            "random": random_state.capture(),
        }
        if not self._stepped:
            left_out += [
                f"{name}: its gradient waits to be summed over the ranks (set_requires_gradient_sync); let it be in the step"
                for name in unreduced(now.modules)
            ]
        self._scales = self._scales_now()
        return {**meta, GAPS: self._judged([*self._coverage_gaps(), *left_out])}

    def passed_over(self) -> None:
        """The state at this boundary is not captured."""
        self._scales = self._scales_now()

    def growth(self) -> Growth:
        """Returns what the optimizers will hold besides once they have stepped. On any thread."""
        return expected_growth(self.optimizers)

    def check(self, meta: Meta) -> None:
        """ConfigError names what the state has, or its optimizers will have after a step, and a snapshot would not hold."""
        check_gaps([*meta[GAPS], *self._judged(list(self.growth().unstorable))])

    @torch.no_grad()
    def fit(self, items: Mapping[str, Item], meta: Meta) -> dict[str, Tensor]:
        """Makes the process hold exactly these items and returns where each one's bytes go. Then comes `restore_meta`.

        SnapshotError when it cannot: the state is of another model.
        """
        structure = Structure.from_tensor(meta["structure"])
        drop_gathered(self._now.modules.values())
        Fitting(self._inventory(), self._first, items, structure).fit_modules()
        Fitting(self._inventory(), self._first, items, structure).fit_optimizers(meta["optimizers"])
        Fitting(self._inventory(), self._first, items, structure).fit_gradients()
        self._stepped.clear()
        self._gradients_wait(tuple(path_of(key).removeprefix(GRADIENT) for key in items if key.startswith(GRADIENT)))
        mine = {held.key: held.tensor for held in self.held()}
        if mine.keys() != items.keys():
            raise SnapshotError(f"the snapshot is of another model: only one side has {sorted(mine.keys() ^ items.keys())[:4]}")
        for key, tensor in mine.items():
            if (tuple(tensor.shape), type_name(tensor.dtype)) != (items[key].shape, items[key].dtype):
                raise SnapshotError(f"{key}: the snapshot has {items[key].dtype} {items[key].shape}, the model {tensor.shape}")
        return mine

    def restore_meta(self, meta: Meta) -> None:
        """Restores what is not a tensor, into a process that was made to fit. The random generators come last."""
        now = self._inventory()
        restore_conditions(now.modules, now.wrappers, meta["conditions"])
        pipelines.restore(meta["pipelines"])
        for path, module in now.stateful_modules:
            if path in meta["modules"]:
                module.set_extra_state(decode(meta["modules"][path]))
        for name, optimizer in self.optimizers.items():
            optimizers.restore_groups(optimizer, meta["optimizers"][name]["groups"])
        for name, each in self.extra.items():
            each.load_state_dict(decode(meta["extra"][name], _live(each)))
        self._scales = self._scales_before = self._scales_now()
        random_state.restore(meta["random"])

    @torch.no_grad()
    def put_back(self, held: Sequence[Held], sources: Sequence[Tensor], meta: Meta) -> None:
        """Makes the process hold a state that it has captured itself: what lies where it lay already is not written."""
        items = {
            each.key: Item(
                key=each.key,
                offset=0,
                nbytes=source.numel() * source.element_size(),
                dtype=type_name(source.dtype),
                shape=tuple(source.shape),
            )
            for each, source in zip(held, sources, strict=True)
        }
        targets = self.fit(items, meta)
        for each, source in zip(held, sources, strict=True):
            if not targets[each.key].is_set_to(source):
                put(targets[each.key], source)
        self.restore_meta(meta)

    def zero_gradients(self) -> None:
        """Forgets the gradients of a discarded step."""
        for tensor in self._inventory().tensors.values():
            tensor.grad = None
        for model in self.models.values():
            for parameter in model.parameters():
                parameter.grad = None

    def _inventory(self) -> Inventory:
        if not self._now.is_still_true():
            self._look_again(self._now.waiting)
        return self._now

    def _unused_gradients(self, now: Inventory) -> tuple[str, ...]:
        """Returns the names of the parameters that have them."""
        stepped = set(map(id, self._stepped))
        waiting = [optimizer for optimizer in self._own_optimizers if id(optimizer) not in stepped]
        if not waiting or (len(self._own_optimizers) == 1 and self._has_skipped()):
            return ()
        wanted = {id(each) for optimizer in waiting for each in parameters_of(optimizer)}
        owned = {id(each) for optimizer in self._own_optimizers for each in parameters_of(optimizer)}
        return tuple(
            now.names.of(tensor)
            for path, tensor in now.tensors.items()
            if path.startswith(PARAMETER) and tensor.grad is not None
            # one that is in no optimizer lends its gradient to one that is: used, where any has stepped
            if id(tensor) in wanted or not (stepped or id(tensor) in owned)
        )

    def _has_skipped(self) -> bool:
        """Returns whether a GradScaler has found infinities in this step: it has skipped the optimizer, and nobody wants them."""
        return any(scale < self._scales_before.get(name, 0.0) for name, scale in self._scales_now().items())

    def _scales_now(self) -> dict[str, float]:
        return {name: each.get_scale() for name, each in self.extra.items() if isinstance(each, torch.amp.GradScaler)}

    def _gradients_wait(self, names: tuple[str, ...]) -> None:
        if names != self._now.waiting:
            self._look_again(names)

    def _look_again(self, waiting: tuple[str, ...]) -> None:
        before, self._now = self._now, Inventory(self.models, self.optimizers, self._now, waiting=waiting)
        if not self._now.has_structure_of(before):
            self._gaps = self._structure = None

    def _packed_structure(self) -> Tensor:
        if self._structure is None:
            self._structure = self._now.structure(self._first).to_tensor()
        return self._structure

    def _coverage_gaps(self) -> list[str]:
        if self._gaps is None:
            self._gaps = coverage.gaps(self._now, self._first, self.models, self.extra)
        return self._gaps

    def _judged(self, gaps: list[str]) -> list[str]:
        if self._strict:
            return gaps
        for gap in gaps:
            if gap not in self._warned:
                self._warned.add(gap)
                log.warning("not in the snapshots, so no recovery brings it back: %s", gap)
        return []


_with_nested = optimizers.with_nested


def _live(each: Any) -> Any:
    return each.state_dict()
