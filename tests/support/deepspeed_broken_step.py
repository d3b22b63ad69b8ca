"""A DeepSpeed engine goes back from wherever a step was broken off, and another one to the same: deepspeed_broken_step.py STAGE.

One process, one rank. Ends well when the losses after it are those of the unbroken steps, to the bit.
"""

import os
import sys
from typing import Any

os.environ.setdefault("LOCAL_RANK", "0")

import deepspeed
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

import deadpool
from deadpool.integrations.deepspeed import EngineState
from deadpool.trainer_hooks.state.training_state import TrainingState

ACCUMULATE = 2


class Training:
    def __init__(self, stage: int) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 8))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": ACCUMULATE,
            "gradient_clipping": 1.0,
            "zero_optimization": {"stage": stage},
            "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": True},
        }
        scheduler = LambdaLR(optimizer, lambda step: 1 / (1 + step))
        self.engine: Any = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=scheduler, config=config)[0]
        self.state = TrainingState(
            models={"model": self.engine.module},
            optimizers={"optimizer": self.engine.optimizer.optimizer},
            extra={"deepspeed": EngineState(self.engine), "scheduler": scheduler},
            strict=True,
        )

    def micro_step(self, key: int) -> Tensor:
        inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(key)).bfloat16()
        loss: Tensor = (self.engine(inputs) - inputs).float().square().mean()
        self.engine.backward(loss)
        self.engine.step()
        return loss.detach()

    def steps(self, first: int, last: int) -> list[float]:
        return [self.micro_step(step * ACCUMULATE + index).item() for step in range(first, last) for index in range(ACCUMULATE)]


class Breaks(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        raise InterruptedError


def break_in_backward(training: Training) -> None:
    hook = training.engine.module[1].register_forward_hook(lambda module, inputs, output: Breaks.apply(output))  # type: ignore[no-untyped-call]
    try:
        training.micro_step(1000)
    except InterruptedError:
        return
    finally:
        hook.remove()
    raise AssertionError("it was to break")


def main(stage: int) -> None:
    deadpool.join()
    deepspeed.init_distributed(verbose=False)
    training = Training(stage)
    training.steps(0, 5)
    held, meta = training.state.held(), training.state.capture_meta()
    training.state.check(meta)
    kept = [each.tensor.clone() for each in held]

    def goes_on_from(other: Training) -> list[float]:
        other.state.zero_gradients()
        other.state.put_back(held, kept, meta)
        return other.steps(5, 10)

    expected = training.steps(5, 10)
    assert goes_on_from(training) == expected
    training.micro_step(1000)
    assert "train_step has ended after micro-step" in str(training.state.capture_meta())
    assert goes_on_from(training) == expected
    break_in_backward(training)
    assert goes_on_from(training) == expected
    another = Training(stage)
    another.steps(0, 2)
    assert goes_on_from(another) == expected
    print(f"stage {stage}: the same {len(expected)} losses")


if __name__ == "__main__":
    main(int(sys.argv[1]))
