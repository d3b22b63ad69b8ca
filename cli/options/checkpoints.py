"""The options of persistent checkpoints, checked together."""

import os
from pathlib import Path
from typing import Any

from deadpool.host.errors import ConfigError
from deadpool.proto.checkpoint import MARKER


def settle_checkpoints(options: dict[str, Any]) -> None:
    """Makes the paths absolute and the folder, if need be.

    ConfigError when checkpoints cannot be written there, or not be read from --resume.
    """
    every, folder, resume = options["checkpoint_every"], options["checkpoint_dir"], options["resume"]
    if every and not folder:
        raise ConfigError(f"--checkpoint-every {every}: say where with --checkpoint-dir")
    if folder:
        path = Path(folder).absolute()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--checkpoint-dir {folder}: {error.strerror}") from error
        if not os.access(path, os.W_OK):
            raise ConfigError(f"--checkpoint-dir {folder}: cannot write there")
        options["checkpoint_dir"] = str(path)
    if resume not in ("auto", "never"):
        if not Path(resume, MARKER).is_file():
            raise ConfigError(f"--resume {resume}: no complete checkpoint there (it has no {MARKER})")
        options["resume"] = str(Path(resume).absolute())
