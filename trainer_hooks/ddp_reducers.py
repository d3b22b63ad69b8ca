"""DDP's order of summation as a part of the training state.

DDP sums gradients in buckets. It starts with one layout and makes another once, from the order in which its first gradients (with
static_graph its second ones) became ready: in the forward after that, with a broadcast from rank 0. Which forward of the
training that is depends on when the model is trained. A process whose DDP has another layout than the other ranks' sums other
parameters with theirs, without an error; one that makes it in another forward waits for a broadcast that nobody sends.

So each state records what every DDP has been through, and whoever goes on from a state brings its own there: whatever its
rehearsal, or a step that was discarded, has done to it. A discarded step may also have left a pass that was prepared and never
ended: DDP would then sum the gradients of the next backward, even within no_sync(), and a sum of sums has other last bits.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from deadpool.host.errors import ConfigError, SnapshotError
from deadpool.trainer_hooks import torch_internals

log = logging.getLogger(__name__)
DDP = "deadpool/ddp"  # its name among the extras
Condition = dict[str, Any]  # "passes": backward passes before the layout was made; "made": whether it was; "order": of parameters
# Where the layout stays for good, "order" is which parameters had gradients that are still to be summed: the others are unused.


class DdpReducers:
    """Of all DDPs within the models. Registered as an extra of the state: `load_state_dict` takes note, `settle` does it."""

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        """ConfigError when a communication hook has a state of its own, which nobody would bring back."""
        self._watched: dict[str, _Watched] = {}
        self._wanted: dict[str, Condition] | None = None
        for name, model in models.items():
            for path, module in model.named_modules():
                if isinstance(module, DistributedDataParallel):
                    where = f"{name}.{path}".rstrip(".")
                    _check_hooks(where, module)
                    self._watched[where] = _Watched(module)

    def __bool__(self) -> bool:
        return bool(self._watched)

    def state_dict(self) -> dict[str, Any]:
        return {path: watched.condition() for path, watched in self._watched.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._wanted = state_dict

    def settled_as(self, conditions: Mapping[str, Condition] | None) -> bool:
        """Brings each DDP to what another process of the rank has recorded of it, None where nothing is known.

        Returns whether all have a layout that they keep, as far as can be known before the state is there. All groups must be
        muted.
        """
        if conditions is None or conditions.keys() != self._watched.keys():
            return not self._watched
        self._wanted = dict(conditions)
        try:
            self.settle()
        except SnapshotError as error:
            log.info("%s: once it has rehearsed", error)
            return False
        return all(watched.keeps_its_layout for watched in self._watched.values())

    def steps_to_layout(self) -> int:
        """Returns after how many steps of a process every DDP has made its own layout; 0 where none makes any."""
        return max((watched.steps_to_layout for watched in self._watched.values()), default=0)

    def settle(self) -> None:
        """Brings each DDP to what the loaded state has recorded of it. All groups must be muted meanwhile.

        SnapshotError when that is not possible.
        """
        wanted, self._wanted = self._wanted or {}, None
        for path, condition in wanted.items():
            watched = self._watched[path]
            before = watched.condition()
            if not watched.rests_in(condition):
                watched.bring_to(condition)
            after = watched.condition()
            if after != condition:
                raise SnapshotError(f"DDP {path} sums its gradients in another order than before: {after}, not {condition}")
            if before != condition:
                log.info("DDP %s sums as it did: %s, was %s", path, condition, before)


class _Watched:
    """One DDP, and how far it has come towards its own layout of buckets."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = ddp
        self._parameters, self._sparse = torch_internals.ddp_parameters(ddp)
        self._passes = 0
        self._ready: dict[int, None] = {}  # parameters in the order in which the gradients of the latest pass became ready
        self._made = ""  # the order of the layout, once it was made
        self._never = bool(ddp.find_unused_parameters and not ddp.static_graph)  # it keeps the layout that it began with
        self._used: set[int] = (
            set()
        )  # where it keeps it: the parameters that passes within no_sync() have used since the last sum
        for index, parameter in enumerate(self._parameters):
            note: Any = parameter.register_post_accumulate_grad_hook
            note(lambda _, index=index: self._has_gradient(index))

    @property
    def steps_to_layout(self) -> int:
        """It makes it in the forward after its first backward, with static_graph after its second."""
        return 0 if self._never else 3 if self._ddp.static_graph else 2

    @property
    def keeps_its_layout(self) -> bool:
        return self._never or bool(self.condition()["made"])

    def _has_gradient(self, index: int) -> None:
        if self._never:
            self._used = set() if self._ddp.require_backward_grad_sync else self._used | {index}
            return
        if self._made or not self._ddp.require_backward_grad_sync:
            return
        if not self._ready or index in self._ready:
            self._passes += 1
            self._ready = {}
        self._ready[index] = None

    def condition(self) -> Condition:
        if self._never:
            return {"passes": 0, "made": False, "order": " ".join(map(str, sorted(self._used)))}
        if not self._made and self._passes:
            self._made = torch_internals.ddp_layout(self._ddp)
        if self._made:
            return {"passes": 0, "made": True, "order": self._made}
        return {"passes": self._passes, "made": False, "order": " ".join(map(str, self._ready))}

    def rests_in(self, condition: Condition) -> bool:
        """Ends the pass that a step may have left begun; False where only a new reducer comes to this condition."""
        if self._never:
            self._used = set(map(int, condition["order"].split()))
            torch_internals.ddp_forget_pass(self._ddp)
            with _gradients_kept(self._parameters):
                torch_internals.ddp_used(self._ddp, self._parameters, self._used)
            return True
        if self.condition() != condition:
            return False
        if self._ddp.mixed_precision is not None:
            return True  # its own hook can end no pass but one of its forward's
        if not self._passes:
            torch_internals.ddp_forget_pass(self._ddp)
            return True
        with _gradients_kept(self._parameters):
            return bool(self._made) and torch_internals.ddp_end_pass(self._ddp, self._parameters, self._sparse)

    def bring_to(self, condition: Condition) -> None:
        """Gives the DDP a new reducer and has it see gradients become ready in the recorded order."""
        problem = self._what_forbids()
        if problem:
            raise SnapshotError(f"a DDP cannot be brought to the order in which it summed its gradients: {problem}")
        with _gradients_kept(self._parameters):
            self._begin_anew(condition)

    def _begin_anew(self, condition: Condition) -> None:
        torch_internals.ddp_begin_anew(self._ddp, self._parameters, self._sparse)
        self._passes, self._ready, self._made = 0, {}, ""
        order = [int(index) for index in condition["order"].replace(",", " ").split()]
        passes = (2 if self._ddp.static_graph else 1) if condition["made"] else condition["passes"]
        for _ in range(passes):
            torch_internals.ddp_forward_begins(self._ddp)
            torch_internals.ddp_backward(self._ddp, [(self._parameters[index], self._sparse[index]) for index in order])
        if condition["made"]:
            torch_internals.ddp_forward_begins(self._ddp)
        torch_internals.ddp_hooks_again(self._ddp)

    def _what_forbids(self) -> str:
        if self._ddp.mixed_precision is not None:
            return "it has mixed_precision"
        if not all(parameter.requires_grad for parameter in self._parameters):
            return "a parameter was frozen after it was wrapped"
        known, ignored = set(map(id, self._parameters)), self._ddp.parameters_to_ignore
        named = self._ddp.module.named_parameters()
        if any(each.requires_grad and id(each) not in known and name not in ignored for name, each in named):
            return "a parameter was unfrozen, or added, after it was wrapped"
        for parameter in self._parameters:
            if len(getattr(parameter, "_post_accumulate_grad_hooks", None) or {}) > 1 or parameter._backward_hooks:
                return "its parameters have hooks of the script's"
        return ""


@contextlib.contextmanager
def _gradients_kept(parameters: Sequence[Tensor]) -> Iterator[None]:
    """A context in which the parameters have no gradients; afterwards they have theirs again, which may lie in the buckets."""
    gradients = [parameter.grad for parameter in parameters]
    values = [None if each is None or each.is_sparse else each.clone() for each in gradients]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient, value in zip(parameters, gradients, values, strict=True):
            parameter.grad = gradient
            if gradient is not None and value is not None:
                gradient.copy_(value)


def _check_hooks(path: str, ddp: DistributedDataParallel) -> None:
    if ddp.mixed_precision is not None:
        return  # the hook is DDP's own
    for hook, state in torch_internals.ddp_hooks(ddp):
        if state is not None and not isinstance(state, torch.distributed.ProcessGroup):
            raise ConfigError(
                f"protect(): DDP {path} has the communication hook {getattr(hook, '__name__', hook)}, which keeps a state "
                f"({type(state).__name__}) that cannot be captured; use a hook without one, as bf16_compress_hook"
            )
