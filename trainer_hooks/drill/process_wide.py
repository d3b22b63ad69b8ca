"""What holds for the whole process and decides how a step computes: torch's settings, and how texts are hashed."""

import torch

from deadpool.trainer_hooks.drill.verdict import HASHES, SETTING


def process_wide() -> dict[str, str]:
    """Returns a readable name -> the value now."""
    found = {
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "torch.get_num_threads()": torch.get_num_threads(),
        "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision(),
        "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
    }
    return {**{f"{SETTING}{name}": str(value) for name, value in found.items()}, HASHES: str(hash("deadpool"))}
