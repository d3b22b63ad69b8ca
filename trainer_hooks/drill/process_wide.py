"""What holds for the whole process and decides how a step computes: settings of torch and others, and how texts are hashed."""

import decimal
import locale
import os
from collections.abc import Callable
from typing import Any

import numpy
import torch

from deadpool.trainer_hooks.drill.verdict import HASHES, SETTING


def process_wide() -> dict[str, str]:
    """Returns a readable name -> the value now."""
    backends = torch.backends.cuda
    attention: list[Callable[[], Any]] = [
        backends.flash_sdp_enabled, backends.mem_efficient_sdp_enabled, backends.math_sdp_enabled, backends.cudnn_sdp_enabled,
    ]  # fmt: skip
    found: dict[str, object] = {
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "torch.get_num_threads()": torch.get_num_threads(),
        "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision(),
        "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.get_default_device()": torch.get_default_device(),
        "torch.backends.mkldnn.enabled": torch.backends.mkldnn.enabled,
        "torch.backends.cudnn.enabled": torch.backends.cudnn.enabled,
        "torch.backends.cudnn.benchmark": torch.backends.cudnn.benchmark,
        "torch.backends.cudnn.deterministic": torch.backends.cudnn.deterministic,
        "kernels of scaled_dot_product_attention": [bool(enabled()) for enabled in attention],
        "numpy.geterr()": numpy.geterr(),
        "decimal.getcontext()": (decimal.getcontext().prec, decimal.getcontext().rounding),
        "locale": locale.setlocale(locale.LC_ALL),
        "os.getcwd()": os.getcwd(),
    }
    for device in ("cpu", "cuda"):
        found[f"torch.is_autocast_enabled({device!r})"] = torch.is_autocast_enabled(device)
        found[f"torch.get_autocast_dtype({device!r})"] = torch.get_autocast_dtype(device)
    return {**{f"{SETTING}{name}": str(value) for name, value in found.items()}, HASHES: str(hash("deadpool"))}
