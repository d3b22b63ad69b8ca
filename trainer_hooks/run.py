"""The door for training scripts: `run = deadpool.join()`, then `run.protect(...)`, then `guard.run(train_step, until=...)`."""

import atexit
import contextlib
import gc
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, SupportsFloat, TypeVar

import torch
import torch._dynamo  # the first optimizer would import it, in each rank by itself; here all ranks of a node share it
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from deadpool.host.console import tell
from deadpool.host.errors import ConfigError
from deadpool.host.limits import no_process_left, too_few_processes
from deadpool.proto.config import keeping_from_json
from deadpool.trainer_hooks.compiled_libraries import come_whole
from deadpool.trainer_hooks.data.batches import batches_of
from deadpool.trainer_hooks.guard import RankGuard
from deadpool.trainer_hooks.loop import Attempt, Guard, Loops, Value
from deadpool.trainer_hooks.predecessor import MESSAGES, predecessor
from deadpool.trainer_hooks.protection.counters import Counters
from deadpool.trainer_hooks.protection.description import Description
from deadpool.trainer_hooks.protection.device_engine import engine_for
from deadpool.trainer_hooks.reports import checked_numbers
from deadpool.trainer_hooks.session import AnotherRole, Session
from deadpool.trainer_hooks.state import pipelines
from deadpool.trainer_hooks.state.extras import Extra
from deadpool.trainer_hooks.state.training_state import TrainingState
from deadpool.trainer_hooks.steps import Steps
from deadpool.trainer_hooks.torch_internals import HashStore, hide_from_dynamo
from deadpool.trainer_hooks.warm.numa import bind_to_cpus, own_local_rank

log = logging.getLogger(__name__)

_SOCKET = "DEADPOOL_SOCKET"
_JOB_DIR = "DEADPOOL_JOB_DIR"
_VAULT_DIR = "DEADPOOL_VAULT_DIR"
_NODE_ID = "DEADPOOL_NODE_ID"
_KEEPING = "DEADPOOL_KEEPING"
_STANDIN = "DEADPOOL_STANDIN"
_HOST = "DEADPOOL_HOST"
_CUDA_GROUPS = "DEADPOOL_CUDA_GROUPS"  # "gloo": for ranks that share a GPU, which NCCL refuses

_THREADS = 14  # of a rank, most of them gRPC's and Gloo's

_run: "Run | None" = None
_repeats = False  # main() calls the script's training
_begins_again: Session | None = None  # has got another role, and waits for join()
Result = TypeVar("Result")


def join(*, timeout: timedelta | None = None, skip_init: bool = False) -> "Run":
    """Initialises torch.distributed and returns this process's place in the run. Call once, before anything that communicates.

    Under deadpool-launch the process becomes a protected rank; a stand-in waits here until it is given one, so read ranks and
    addresses from the result (or from the environment) after this call, not before. Under torchrun it is init_process_group;
    in a plain process a group of one. `timeout`: of a collective operation, as in init_process_group.

    `skip_init`: a process that takes over a rank does not compute the random first values of its large parameters on the CPU,
    which the restore overwrites (docs/spares.md). All random numbers after them are the same as with them. A script that uses
    first values for something that is not in protect(), such as a copy of the untrained model, is refused when it starts.

    ConfigError: called twice, or after init_process_group, for which it stands. UnavailableError: the job's rendezvous store
    cannot be reached.
    """
    global _run
    if _run is not None:
        raise ConfigError("deadpool.join() was called before in this process; keep its result")
    if dist.is_initialized():
        raise ConfigError("torch.distributed is initialized already; deadpool.join() stands for init_process_group()")
    hide_from_dynamo("deadpool")
    pipelines.watch(before_any=True)  # no stage can be made before there are groups
    come_whole()
    _run = _join_job(timeout, skip_init) if _SOCKET in os.environ else _join_unprotected(timeout)
    return _run


def main(train: Callable[[], Result]) -> Result:
    """Calls train(), which joins and trains, and returns what it returns: as `train()` would.

    A stand-in that is kept hot has built one rank. Where another rank is lost, this calls train() once more in the same process:
    the device's context, allocator, compiled code and whatever else the process has by then are there. Without main() the
    process ends, and a fresh one begins. What train() leaves behind must let it be called again: it begins with join(), reads
    its rank from there, and its `finally` clauses and context managers end what it has begun.
    """
    global _repeats
    _repeats = True
    try:
        while True:
            with contextlib.suppress(AnotherRole):
                return train()
            _leave_role()
    finally:
        _repeats = False


def _leave_role() -> None:
    """Frees what train() has built, before it builds that once more."""
    global _run, _begins_again
    assert _run is not None
    session, _run = _run._session, None
    assert session is not None
    session.begin_again()
    dist.destroy_process_group()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    _begins_again = session


def joined() -> "Run":
    """Returns what join() has returned in this process. ConfigError: it was not called yet."""
    if _run is None:
        raise ConfigError("deadpool.join() was not called; call it before anything that communicates")
    return _run


class Run:
    """This process's place in the run: `rank`, `world_size`, `local_rank`, `device`.

    `session` is None outside deadpool-launch: nothing is protected then.
    """

    def __init__(self, *, session: Session | None) -> None:
        self.rank: int = dist.get_rank()
        self.world_size: int = dist.get_world_size()
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self.device = torch.device("cuda", self.local_rank) if torch.cuda.is_available() else torch.device("cpu")
        self._session = session
        self._guarded = False

    @property
    def protected(self) -> bool:
        """Whether deadpool-launch has started this process; under torchrun or alone everything runs the same, unprotected."""
        return self._session is not None

    @property
    def joined_late(self) -> bool:
        """This process takes over a rank of a run that has begun: it must not truncate or announce anything of the run."""
        return self._session is not None and self._session.role.muted

    def protect(
        self,
        *,
        model: nn.Module | Mapping[str, nn.Module],
        optimizer: Optimizer | Mapping[str, Optimizer],
        extra: Mapping[str, Extra] | None = None,
        strict: bool = True,
    ) -> Guard:
        """Returns the guard of this training state: all parameters, buffers and optimizer state, the random generators of
        python, numpy, torch and CUDA, and `extra`: what has a state_dict() (of tensors, numpy arrays, numbers, text, lists and
        dicts), random generators of the script's own, and plain dicts, lists, sets, deques, arrays, tensors and objects of
        dataclasses, which are restored in place.

        Call once, after wrapping (DDP, FSDP, ZeRO) and after LR schedulers were made. From here on optimizer.step waits for the
        copy of the state that it is about to change, and does nothing in a step that will be discarded.

        ConfigError, with which the job ends (exit code 2): called twice; a parameter that has no memory yet or lies on a device
        that is not this rank's; an extra that is none of these; a hook of DDP's that keeps a state.

        `optimizer`: {} where the steps change the parameters without one: what is written while it is copied is found by its
        version counters, and cloned at each boundary from then on (protection/outside_writes.py).

        `strict`: a state of which a part could not be restored is refused, and the part is named: at the start the job ends
        (ConfigError, exit code 2), later it is unprotected. With False a warning names it, and recoveries leave it as it is.
        """
        models = dict(model) if isinstance(model, Mapping) else {"model": model}
        optimizers = dict(optimizer) if isinstance(optimizer, Mapping) else {"optimizer": optimizer}
        try:
            self._check(models, optimizers)
            if self._session is None:
                return PlainGuard()
            extras = {**(extra or {}), MESSAGES: self._session.open().messages}
            state = TrainingState(models=models, optimizers=optimizers, extra=extras, strict=strict)
            return RankGuard(self._session, state, list(optimizers.values()), engine_for(self.device))
        except ConfigError as error:
            self.refuse(str(error))

    def refuse(self, reason: str) -> NoReturn:
        """Ends the job (exit code 2) with this line as its cause: the script asks for what cannot be. Raises ConfigError."""
        if self._session is not None:
            self._session.refuse(reason)
        raise ConfigError(reason)

    def _check(self, models: Mapping[str, nn.Module], optimizers: Mapping[str, Optimizer]) -> None:
        if self._guarded:
            raise ConfigError("protect() was called before: one guard holds all models, optimizers and extras of a training")
        self._guarded = True
        for name, optimizer in optimizers.items():
            if not callable(getattr(optimizer, "step", None)):
                how = "optimizer={} where the steps change the parameters by themselves"
                raise ConfigError(f"protect(): {name} is {type(optimizer).__name__}, which has no step(); {how}")
        for name, model in models.items():
            if not isinstance(model, nn.Module):
                raise ConfigError(f"protect(): {name} is {type(model).__name__}, and no torch.nn.Module")
            for path, parameter in model.named_parameters():
                if parameter.is_meta:
                    raise ConfigError(f"protect(): {name}.{path} is on the meta device; give it memory (to_empty) before")
                if parameter.is_cuda and parameter.device != self.device:
                    raise ConfigError(f"protect(): {name}.{path} is on {parameter.device}, run.device is {self.device}")


class PlainGuard:
    """The guard outside deadpool-launch: the same loop, and an error is just an error."""

    def __init__(self) -> None:
        self.next_step = 0
        self.counters = Counters()
        self.protecting = False
        self.catching_up = False
        self._loops = Loops()

    def describe(self) -> Description:
        return Description(rank=dist.get_rank(), protected=False)

    def report(
        self, *, loss: SupportsFloat | None = None, tokens: SupportsFloat | None = None, **numbers: SupportsFloat | None
    ) -> None:
        checked_numbers({"loss": loss, "tokens": tokens, **numbers})

    def run(self, train_step: Callable[[int], Value], *, until: int, start: int | None = None) -> Iterator[tuple[int, Value]]:
        self.begin(until=until, start=start)
        while self.next_step < until:
            step = self.next_step
            with self.step():
                value = train_step(step)
            yield step, value
        self.finish()

    def steps(
        self,
        loader: Any,
        *,
        until: int,
        start: int | None = None,
        accumulate: int = 1,
        epochs_apart: bool = False,
        rehearse: bool = False,
    ) -> Steps:
        batches = batches_of(loader, accumulate, epochs_apart=epochs_apart)
        return Steps(self, batches, start=start, until=until, rehearse=rehearse)

    def begin(self, *, until: int, start: int | None = None, rehearse: bool = True) -> None:
        self._loops.begin(start, until)
        self.next_step = self._loops.start

    @property
    def live(self) -> bool:
        return True

    def ended(self) -> None:
        pass

    def given(self, batches: Any) -> bool:
        return True

    def left_in_step(self) -> None:
        pass

    def script_failed(self, error: Exception) -> None:
        pass

    def step(self) -> Attempt:
        return Attempt(self, self.next_step)

    def finish(self) -> bool:
        self._loops.ended(self.next_step)
        return True

    def begin_attempt(self, step: int) -> None:
        pass

    def end_attempt(self, step: int, error: Exception | None) -> tuple[bool, bool]:
        if error is not None:
            return False, True
        self.next_step = step + 1
        return True, False


def _join_job(timeout: timedelta | None, skip_init: bool) -> Run:
    if _begins_again is None:
        sys.excepthook = _without_refusals(sys.excepthook)
    if reason := too_few_processes(_THREADS):
        raise ConfigError(f"deadpool.join(): {reason}")
    try:
        return _become_rank(timeout, skip_init)
    except (OSError, RuntimeError) as error:
        if not (reason := no_process_left(error)):
            raise
        raise ConfigError(f"deadpool.join(): {reason}") from error


def _become_rank(timeout: timedelta | None, skip_init: bool) -> Run:
    global _begins_again
    environment = os.environ
    session, _begins_again = _begins_again or _new_session(environment), None
    environment.update(session.role.environment)
    if environment.pop(_STANDIN, None) is not None:
        bind_to_cpus(own_local_rank(environment))
    if torch.cuda.is_available():
        torch.cuda.set_device(int(environment["LOCAL_RANK"]))  # 0 with --virtual-local-rank
    session.open_groups(environment.get(_HOST, "127.0.0.1"), timeout, gloo_alone=environment.get(_CUDA_GROUPS) == "gloo")
    if session.role.muted:
        session.inherit(predecessor(session.vault_dir, session.role.placement, session.token))
        if MESSAGES in session.inherited:
            session.open().messages.load_state_dict(session.inherited[MESSAGES])
    if skip_init:
        session.first_values.begin(left_out=session.role.muted)
    return Run(session=session)


def _new_session(environment: Mapping[str, str]) -> Session:
    if _STANDIN in environment:
        _warm_up()
    session = Session(
        Path(environment[_SOCKET]),
        Path(environment[_JOB_DIR]),
        Path(environment[_VAULT_DIR]),
        environment[_NODE_ID],
        keeping_from_json(environment.get(_KEEPING, "{}")),
        repeatable=_repeats,
    )
    atexit.register(session.close)
    return session


Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def _without_refusals(hook: Hook) -> Hook:
    """Returns what prints an uncaught exception as before, but for a ConfigError, which the launcher prints in one line.

    A traceback from each rank would only push that line off the screen. Where nobody has told the agent of it, one line does.
    """

    def print_unless_refused(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, ConfigError):
            hook(kind, error, trace)
        elif not os.path.exists(os.environ.get("TORCHELASTIC_ERROR_FILE", "")):
            tell(traceback.format_exception_only(error)[-1].rstrip())

    return print_unless_refused


def _join_unprotected(timeout: timedelta | None) -> Run:
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if "RANK" in os.environ:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group(backend, timeout=timeout)
    else:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=timeout)
    atexit.register(_leave_unprotected)
    return Run(session=None)


def _leave_unprotected() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _warm_up() -> None:
    """Runs a tiny step, so that what torch loads or starts on first use is there when a rank must be taken over."""
    states = torch.get_rng_state()
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.autograd.backward(nn.functional.dropout(model(torch.ones(2, 8)), 0.5).sum())
    optimizer.step()
    torch.set_rng_state(states)
