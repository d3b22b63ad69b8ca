"""What the schedules of pipelines remember: for which mode, training or evaluation, the stages have prepared themselves.

Whenever the mode changes, all stages prepare again, with small messages. A step that is discarded has changed it in some
processes and not in others, and its muted messages have left stages prepared in ways that are wrong: without the gradients that
they would have to wait for. So after a restore every stage of every rank prepares once more, at its next use.
"""

import gc
import sys
import weakref
from functools import wraps
from typing import Any

_MODULE = "torch.distributed.pipelining.schedules"  # not imported for its own sake: it takes long
_FLAGS = (
    ("_stage_forward_initialized", "_stage_backward_initialized"),
    ("_stages_forward_initialized", "_stages_backward_initialized"),
)
_OF_A_STEP = ("_internal_losses", "fwd_recv_ops", "bwd_recv_ops", "unshard_ops", "unsharded_stages")  # empty between two steps
_known: "weakref.WeakSet[Any] | None" = None
_restored: "weakref.WeakKeyDictionary[Any, list[bool]]" = weakref.WeakKeyDictionary()  # what each was, before it is used again


def conditions() -> list[list[bool]]:
    """Returns for each schedule of this process whether it is prepared at all, and for training: after a restore, what it was."""
    found = ((each, [vars(each)[flag] for flag in flags]) for each, flags in _schedules())
    return [now if now[0] else _restored.get(each, now) for each, now in found]


def restore(saved: list[list[bool]]) -> None:
    """Has every schedule prepare itself when it is used next. On all ranks alike: in every restore.

    What a step that was left in the middle has put down is gone: its losses would be taken for the next one's.
    """
    found = _schedules()
    for schedule, flags in found:
        own = vars(schedule)
        own.update(dict.fromkeys(flags, False))
        for name in _OF_A_STEP:
            if name in own:
                own[name].clear()
    if len(found) == len(saved):
        _restored.update({schedule: list(was) for (schedule, _), was in zip(found, saved, strict=True)})


def _stages(schedule: Any) -> list[Any]:
    own = vars(schedule)
    return own["_stages"] if "_stages" in own else [own["_stage"]]


def _schedules() -> list[tuple[Any, tuple[str, str]]]:
    """Returns those that there are, in an order that is the same in every process of the rank, with the names of their flags."""
    if not watch():
        return []
    assert _known is not None
    found = ((each, flags) for each in _known for flags in _FLAGS if flags[1] in vars(each))
    return sorted(found, key=lambda row: _described(row[0]))


def _described(schedule: Any) -> tuple[Any, ...]:
    own = vars(schedule)
    indices = tuple(stage.stage_index for stage in _stages(schedule))
    return type(schedule).__name__, indices, own.get("_n_microbatches", 0), own.get("_loss_fn") is None


def watch(*, before_any: bool = False) -> bool:
    """Returns whether pipelines may be in use; from the first time on, every schedule is noted as it is made.

    Those that there are already are looked for among all objects, which takes 0.1 s: not with `before_any`. A joiner, whose first
    need of them is the restore that everybody waits for, has been here before.
    """
    global _known
    module = sys.modules.get(_MODULE)
    kind: Any = getattr(module, "_PipelineSchedule", None)
    if kind is None or _known is not None:
        return _known is not None
    _known = weakref.WeakSet([] if before_any else [each for each in gc.get_objects() if issubclass(type(each), kind)])
    init = kind.__init__

    @wraps(init)
    def noted(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        assert _known is not None
        _known.add(self)

    kind.__init__ = noted
    return True
