"""What can stand in the place of SCRIPT: what `python SCRIPT` runs."""

import zipfile
from pathlib import Path


def is_runnable(script: str) -> bool:
    """Returns whether it is a file, or a folder with a __main__.py."""
    return Path(script).is_file() or Path(script, "__main__.py").is_file()


def is_application(script: str) -> bool:
    """Returns whether it is a folder or zip file, which only a new interpreter runs."""
    return Path(script).is_dir() or zipfile.is_zipfile(script)
