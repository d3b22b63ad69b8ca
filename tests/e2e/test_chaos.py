"""The chaos run in small form: failures at random moments, some while others are being recovered from; the same end, and events,
metrics and summary that account for every failure and every second.

By hand: python -m benchmarks.chaos --seed S --faults 30.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import Job, Launcher, launching
from training import ROOT, Training, finished, start

pytestmark = pytest.mark.e2e
FAULTS, EVERY_STEPS = 4, 8
STEPS = (FAULTS + 2) * EVERY_STEPS
SLOW = ("hang-rank", "freeze-rank")  # found by time-outs


class Running:
    def __init__(self, job: Job) -> None:
        self._job = job

    def alive(self) -> bool:
        return self._job.process.poll() is None


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    with launching(tmp_path_factory.mktemp("calm")) as launcher:
        yield finished(start(launcher, "zero", steps=STEPS))


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_a_random_mixture_of_failures_ends_as_the_unbroken_run(
    launcher: Launcher, calm: Training, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks import account, chaos

    began_s = time.monotonic()
    job = start(launcher, "zero", *chaos.options(tmp_path), steps=STEPS)
    failures = chaos.Chaos(seed, FAULTS, job.job_folder, Running(job), without=SLOW)
    failures.run(EVERY_STEPS)
    broken = finished(job)
    wall_s = time.monotonic() - began_s
    broken.assert_same_as(calm)
    assert failures.injected
    metrics = account.JobMetrics((job.log_dir / "metrics.prom").read_text())
    assert account.unaccounted(failures.sent, job.events(), metrics, broken.summary, wall_s=wall_s) == []
    chaos.measure(failures.injected, job.events())
    for failure in failures.injected:
        print(json.dumps(chaos.plain(failure)))
