"""A process that may open too few files says so in one line."""

import resource

from deadpool.host.limits import too_few_open_files


def test_too_few_open_files_are_said_with_what_is_needed() -> None:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert too_few_open_files(allowed) == ""
    assert too_few_open_files(allowed + 1) == (
        f"only {allowed} open files are allowed, and {allowed + 1} are needed: raise the hard limit (ulimit -Hn)"
    )
