"""How many files a process may have open, and how many processes and threads its user may have."""

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_EXEMPT = 1 << 21 | 1 << 24  # CAP_SYS_ADMIN, CAP_SYS_RESOURCE


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


def too_few_processes(needed: int) -> str:
    """Returns in one line why so many more processes and threads cannot be started here, "" when they can."""
    for left, limit, advice in _process_limits():
        if left < needed:
            return f"only {max(0, left)} more processes and threads can be started ({limit}), and {needed} are needed: {advice}"
    return ""


def no_process_left(error: BaseException) -> str:
    """Returns in one line which limit a process or thread that could not be started has met, "" for any other error."""
    threads = isinstance(error, RuntimeError) and "can't start new thread" in str(error)
    if not threads and not (isinstance(error, OSError) and error.errno == errno.EAGAIN):
        return ""
    limits = list(_process_limits())
    said = "; ".join(f"{limit}: {advice}" for _, limit, advice in limits if _ <= 0) or "; ".join(each[1] for each in limits)
    return f"a process or thread cannot be started: {said or 'the machine has no room for one more'}"


def _process_limits() -> Iterator[tuple[int, str, str]]:
    """Yields (how many more, which limit that is, what to do) for each limit on processes and threads that counts here."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if allowed != resource.RLIM_INFINITY and not _is_exempt():
        used = _own_threads()
        yield allowed - used, f"ulimit -u is {allowed}, {used} are in use", "raise it (ulimit -u, limits.conf, LimitNPROC=)"
    for folder in _pid_cgroups():
        with contextlib.suppress(OSError, ValueError):  # not there, or "max"
            most = int((folder / "pids.max").read_text())
            used = int((folder / "pids.current").read_text())
            yield most - used, f"{folder}/pids.max is {most}, {used} are in use", "raise it (--pids-limit, TasksMax=)"


def _is_exempt() -> bool:
    status = dict(line.split(":", 1) for line in (_PROC / "self/status").read_text().splitlines())
    return bool(int(status.get("CapEff", "0"), 16) & _EXEMPT)


def _own_threads() -> int:
    """Returns how many threads this user has on this machine, as far as they can be seen."""
    count = 0
    for each in _PROC.iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if each.name.isdecimal() and each.stat().st_uid == os.getuid():
                count += len(os.listdir(each / "task"))
    return count


def _pid_cgroups() -> Iterator[Path]:
    """Yields the folders of the control groups that may limit how many tasks this process and its siblings are."""
    groups = _PROC / "self/cgroup"  # a kernel without control groups has none
    for line in groups.read_text().splitlines() if groups.exists() else []:
        _, kinds, path = line.split(":", 2)
        if kinds in ("", "pids"):
            root = _CGROUPS / kinds
            own = root / path.lstrip("/")
            yield from (each for each in (own, *own.parents) if each.is_relative_to(root))
