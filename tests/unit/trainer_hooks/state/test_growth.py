"""How large a state will be once its optimizers have stepped."""

from typing import Any

import pytest
import torch
from torch import nn

from deadpool.trainer_hooks.state.growth import expected_growth


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adafactor, torch.optim.LBFGS])
def test_expected_growth_is_enough(kind: type[torch.optim.Optimizer]) -> None:
    model = nn.Linear(64, 64)
    optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    before = {name: repr(value) for name, value in vars(optimizer).items()}
    growth = expected_growth({"optimizer": optimizer})
    assert {name: repr(value) for name, value in vars(optimizer).items()} == before
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step(lambda: 0.0)
    tensors = [value for entries in optimizer.state.values() for value in entries.values() if isinstance(value, torch.Tensor)]
    assert growth.items >= len(tensors) or kind in (torch.optim.Adafactor, torch.optim.LBFGS)
    needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert growth.size_bytes >= needed or kind is torch.optim.LBFGS  # its history grows with the steps, and the slots with it
    again = expected_growth({"optimizer": optimizer})
    assert (again.items, again.size_bytes) == (0, 0) or not tensors or kind is torch.optim.LBFGS


class _Moody(torch.optim.SGD):
    """Steps only once it was told that training begins, as schedule-free optimizers do."""

    def step(self, closure: Any = None) -> Any:
        raise Exception("call train() first")


def test_an_optimizer_that_refuses_a_dry_step_is_taken_for_adam() -> None:
    growth = expected_growth({"optimizer": _Moody(nn.Linear(4, 4).parameters(), lr=0.1)})
    assert (growth.items, growth.unstorable) == (4, ())


class _Thing:
    pass


class _WithObject(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault("thing", _Thing())


def test_what_a_step_will_make_and_a_snapshot_cannot_hold_is_named() -> None:
    growth = expected_growth({"optimizer": _WithObject(nn.Linear(4, 4).parameters(), lr=0.1)})
    assert "thing" in growth.unstorable[0]
    assert "_Thing" in growth.unstorable[0]
