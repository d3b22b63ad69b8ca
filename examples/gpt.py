"""A small GPT over bytes, and the text that it learns: the source of Python's standard library, which every machine has."""

import math
import random
import sysconfig
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

BYTES = 256  # the vocabulary


def load_corpus() -> tuple[Tensor, Tensor]:
    """Returns the text to train on and the text held out (every 20th file), as bytes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [
        b"".join(file.read_bytes() for i, file in enumerate(files) if (i % 20 == 19) == held_out) for held_out in (False, True)
    ]
    train, held_out = (torch.frombuffer(bytearray(text), dtype=torch.uint8) for text in texts)
    return train, held_out


def draw(text: Tensor, key: str, count: int, context: int) -> tuple[Tensor, Tensor]:
    """Returns inputs and targets, each [count, context]: the same ones whenever it is called with the same key."""
    choice = random.Random(key)
    starts = [choice.randrange(len(text) - context) for _ in range(count)]
    windows = torch.stack([text[start : start + context + 1] for start in starts]).long()
    return windows[:, :-1], windows[:, 1:]


def learning_rate_curve(warmup_steps: int, steps: int) -> Callable[[int], float]:
    """Returns the factor of the learning rate at a step: up in a line, then down to a tenth in half a cosine."""

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        done = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
        return 0.55 + 0.45 * math.cos(math.pi * done)

    return factor


class Block(nn.Module):
    """Attention and an MLP. How many heads it has follows from `qkv`: tensor parallelism leaves each rank some of them."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.head_width = width // heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.attention_norm(x)).unflatten(-1, (-1, 3, self.head_width))  # [batch, context, heads, q k v, width]
        q, k, v = heads.permute(3, 0, 2, 1, 4).unbind(0)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.dropout(self.project(mixed))
        thought: Tensor = self.dropout(self.down(gelu(self.up(self.mlp_norm(x)))))
        return x + thought


class GPT(nn.Module):
    """The whole model, or one stage of a pipeline: the first begins with bytes, the last ends with logits.

    `bf16`: computes in bfloat16 where that is safe (autocast). `checkpointing`: keeps no activations inside a block.
    """

    def __init__(
        self,
        *,
        layers: int,
        heads: int,
        width: int,
        context: int,
        dropout: float,
        first: bool = True,
        last: bool = True,
        bf16: bool = False,
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.bf16, self.checkpointing = bf16, checkpointing
        self.token = nn.Embedding(BYTES, width) if first else None
        self.position = nn.Embedding(context, width) if first else None
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width) if last else None
        self.head = nn.Linear(width, BYTES, bias=False) if last else None

    def forward(self, x: Tensor) -> Tensor:
        """Takes bytes [batch, context], or what the stage before gave; returns logits or what the next stage takes."""
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            if self.token is not None and self.position is not None:
                x = self.dropout(self.token(x) + self.position.weight[: x.shape[1]])
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if self.checkpointing and self.training else block(x)
            if self.norm is not None and self.head is not None:
                x = self.head(self.norm(x))
        return x.float()
