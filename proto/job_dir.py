"""Where the folders of this user's running jobs are, for all who look for one."""

import os
from pathlib import Path


def jobs_dir() -> Path:
    """Returns `$XDG_RUNTIME_DIR/deadpool`, else `/tmp/deadpool-<uid>`: a folder with one for each job. It need not exist."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = base and os.access(base, os.W_OK | os.X_OK)
    return Path(base, "deadpool") if usable else Path(f"/tmp/deadpool-{os.getuid()}")
