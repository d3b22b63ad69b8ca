"""The unbroken runs that broken ones are compared with, each made once for all tests."""

from collections.abc import Callable

import pytest
from example_jobs import Example
from launching import launching
from training import Training, finished, start


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Training]:
    """Returns the unbroken run with that --parallel."""
    made: dict[str, Training] = {}

    def run(parallel: str) -> Training:
        if parallel not in made:
            with launching(tmp_path_factory.mktemp("unbroken")) as launcher:
                made[parallel] = finished(start(launcher, parallel))
        return made[parallel]

    return run


@pytest.fixture
def reference(unbroken: Callable[[str], Training], request: pytest.FixtureRequest) -> Training:
    """The unbroken run of the test's parameter `parallel`; without one, of zero."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    return unbroken(parameters.get("parallel", "zero"))


@pytest.fixture(scope="session")
def unbroken_example(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Example], Training]:
    """Returns the unbroken run of that example."""
    made: dict[Example, Training] = {}

    def run(example: Example) -> Training:
        if example not in made:
            with launching(tmp_path_factory.mktemp("example")) as launcher:
                made[example] = finished(example.start(launcher))
        return made[example]

    return run
