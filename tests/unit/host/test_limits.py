"""A process that may open too few files, or start too few processes, says so in one line."""

import errno
import os
import re
import resource
import subprocess
import sys

import pytest

from deadpool.host.limits import no_process_left, too_few_open_files, too_few_processes

NOBODY = 65534

LIMITED = """
import os, resource, sys, threading
from deadpool.host.limits import no_process_left, too_few_processes
resource.setrlimit(resource.RLIMIT_NPROC, (20, 20))
os.setresuid({nobody}, {nobody}, {nobody})
print(too_few_processes(15))
print(too_few_processes(20))
end = threading.Event()
try:
    while True:
        threading.Thread(target=end.wait).start()
except RuntimeError as error:
    print(no_process_left(error))
end.set()
"""


def test_too_few_open_files_are_said_with_what_is_needed() -> None:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert too_few_open_files(allowed) == ""
    assert too_few_open_files(allowed + 1) == (
        f"only {allowed} open files are allowed, and {allowed + 1} are needed: raise the hard limit (ulimit -Hn)"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without processes")
def test_too_few_processes_are_said_with_the_limit_and_what_is_needed() -> None:
    """Root itself is exempt from the limit; nobody has no process here but this one."""
    assert too_few_processes(1) == ""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED.format(nobody=NOBODY)], capture_output=True, text=True, timeout=30, check=False
    )
    enough, too_few, refused = done.stdout.splitlines()
    assert enough == ""
    said = (
        r"only (\d+) more processes and threads can be started \(ulimit -u is 20, (\d+) are in use\), and 20 are needed: raise it"
    )
    found = re.match(said, too_few)
    assert found, done
    assert int(found[1]) + int(found[2]) == 20
    assert re.match(r"a process or thread cannot be started: ulimit -u is 20, \d+ are in use: raise it \(ulimit -u", refused)


def test_other_errors_are_no_lack_of_processes() -> None:
    assert no_process_left(RuntimeError("something else")) == ""
    assert no_process_left(OSError(errno.ENOENT, "no such file")) == ""
    assert no_process_left(OSError(errno.EAGAIN, "Resource temporarily unavailable"))
