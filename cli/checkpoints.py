"""The options of persistent checkpoints, checked together."""

import os
from pathlib import Path

from deadpool.proto.checkpoint import MARKER
from deadpool.proto.config import JobConfig
from deadpool.proto.errors import ConfigError


def check_checkpoints(config: JobConfig) -> None:
    """Makes the folder if need be; ConfigError when checkpoints cannot be written there, or not be read from --resume."""
    if config.checkpoint_every and not config.checkpoint_dir:
        raise ConfigError(f"--checkpoint-every {config.checkpoint_every}: say where with --checkpoint-dir")
    if config.checkpoint_dir:
        try:
            Path(config.checkpoint_dir).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--checkpoint-dir {config.checkpoint_dir}: {error.strerror}") from error
        if not os.access(config.checkpoint_dir, os.W_OK):
            raise ConfigError(f"--checkpoint-dir {config.checkpoint_dir}: cannot write there")
    if config.resume not in ("auto", "never") and not Path(config.resume, MARKER).is_file():
        raise ConfigError(f"--resume {config.resume}: no complete checkpoint there (it has no {MARKER})")
