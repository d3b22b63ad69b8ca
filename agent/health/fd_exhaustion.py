"""No descriptors left: what an agent does without, or does later, for as long as its open files are at their limit."""

import contextlib
import errno
from collections.abc import Iterator

RETRY_S = 0.2  # between two tries of what cannot be done without


def is_exhaustion(error: OSError) -> bool:
    """Returns whether the process, or the whole machine, may not open one file more."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


@contextlib.contextmanager
def skipped_when_exhausted() -> Iterator[None]:
    """What is inside is left out when it needs a descriptor and there is none."""
    try:
        yield
    except OSError as error:
        if not is_exhaustion(error):
            raise
