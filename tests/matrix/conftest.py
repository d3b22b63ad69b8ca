"""The two ranks that run the matrix' cells, for all of them."""

import json
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest
from matrix_choice import Outcome

_DRIVER = Path(__file__).parents[1] / "support" / "matrix_driver.py"


@pytest.fixture(scope="session")
def run_cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, Collection[str]], Outcome]]:
    """Takes a training through every way back from a failure, in two processes that live for all cells."""
    folder = tmp_path_factory.mktemp("matrix")
    with subprocess.Popen(
        [sys.executable, str(_DRIVER), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        driver.stdout.readline()

        def run(parallel: str, pieces: Collection[str]) -> Outcome:
            assert driver.stdin is not None
            assert driver.stdout is not None
            driver.stdin.write(json.dumps({"parallel": parallel, "pieces": sorted(pieces)}) + "\n")
            driver.stdin.flush()
            answer = json.loads(driver.stdout.readline())
            return Outcome(answer["kind"], answer["problem"])

        yield run
        driver.stdin.close()
        driver.wait(60)
