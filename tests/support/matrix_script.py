"""A cell of the matrix as a script of its own: `matrix_script.py PARALLELISM PIECES STEPS`, pieces with commas between them.

Writes each rank's loss at every step to `losses`, with a digest of all tensors, and the digests of all that it holds at the end
to `digests`, a line each.
"""

import json
import os
import sys
import time

import torch.distributed as dist
from matrix_pieces import Meshes, build

import deadpool
from deadpool.trainer_hooks.drill.digests import digest, table_of
from deadpool.trainer_hooks.drill.tables import Table
from deadpool.trainer_hooks.state.training_state import TrainingState

_STEP_S = 0.05  # an injection waits for the middle of a step


def say(path: str, **row: object) -> None:
    """Appends a line in one write: the ranks share the file."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(fd, (json.dumps(row) + "\n").encode())
    os.close(fd)


def tensors(table: Table) -> dict[str, str]:
    """Returns the digests of all tensors but gradients: this script uses them in the step that makes them."""
    return {key: each for key, each in table.items.items() if not key.startswith("gradient/")}


def main() -> None:
    parallel, pieces, steps = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3])
    run = deadpool.join()
    training = build(parallel, set(filter(None, pieces)), Meshes())
    guard = run.protect(model=training.models, optimizer=training.optimizers, extra=training.extra)

    def train_step(step: int) -> float:
        time.sleep(_STEP_S)
        return training.script.step(step)

    state = TrainingState(models=training.models, optimizers=training.optimizers, extra=training.extra)
    for step, loss in guard.run(train_step, until=steps):
        say("losses", rank=run.rank, step=step, loss=loss.hex(), tensors=digest(tensors(table_of(state))))
    table = table_of(state)
    meta = {key: each for key, each in table.meta.items() if "random" not in key}
    say("digests", rank=run.rank, items=tensors(table), meta=meta)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
