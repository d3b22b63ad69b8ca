"""How many files a process may have open."""

import contextlib
import resource


def raise_open_files() -> int:
    """Allows this process as many open files as it may allow itself; returns how many it was allowed before."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # more than the kernel lets anybody have
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return before


def too_few_open_files(needed: int) -> str:
    """Returns in one line why this process cannot do with the files that it may have open, "" when it can."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY or allowed >= needed:
        return ""
    return f"only {allowed} open files are allowed, and {needed} are needed: raise the hard limit (ulimit -Hn)"


def lower_open_files(allowed: int) -> None:
    """Allows this process only so many open files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
