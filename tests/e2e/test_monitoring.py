"""A real Prometheus scrapes a job as deploy/monitoring says, and a real browser looks at its page while a node is swapped."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from browser import browser, opened_page
from launching import Launcher, until
from ports import port_for_later
from prometheus import program
from training import ROOT, SMALL

import deadpool

pytestmark = pytest.mark.e2e
MONITORING = Path(deadpool.__file__).parent / "deploy" / "monitoring"


class Prometheus:
    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, path: str) -> Any:
        """Returns the answer's data, None as long as nobody answers."""
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/api/v1/{path}", timeout=10) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    def value(self, query: str) -> float | None:
        """Returns the value of the only series that the query finds, None when there is none."""
        found = (self.ask(f"query?query={quote(query)}") or {"result": []})["result"]
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None


@contextmanager
def prometheus(folder: Path, metrics_port: int) -> Iterator[Prometheus]:
    for name in ("prometheus.yml", "rules.yml"):
        shutil.copy(MONITORING / name, folder)
    config = (folder / "prometheus.yml").read_text().replace(":9400/", f":{metrics_port}/")
    for slow, fast in (("interval: 5s", "interval: 500ms"), ("interval: 15s", "interval: 500ms")):
        assert slow in config
        config = config.replace(slow, fast)
    (folder / "prometheus.yml").write_text(config)
    port = port_for_later()
    command = [program("prometheus"), "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    with (folder / "prometheus.log").open("wb") as log:
        listen = f"--web.listen-address=127.0.0.1:{port}"
        process = subprocess.Popen([*command, listen], cwd=folder, stdout=log, stderr=log)
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(60)


def test_prometheus_finds_the_job_and_counts_a_recovery(launcher: Launcher, tmp_path: Path) -> None:
    program("prometheus")
    metrics_port = port_for_later()
    options = ("--nnodes", "2", "--nproc-per-node", "1", "--spares", "1", "--metrics-port", str(metrics_port))
    job = launcher.start(*options, str(ROOT / "examples" / "train_gpt.py"), "--steps", "100000", *SMALL)
    of_job = f'job_id="{job.job_id}"'
    with prometheus(tmp_path, metrics_port) as found:
        until(lambda: (found.value(f"deadpool_commit_step{{{of_job}}}") or 0) > 3, 80, "Prometheus sees steps committed")
        until(lambda: found.value(f"sum(deadpool_agent_connected{{{of_job}}})") == 3, 60, "Prometheus sees all agents")
        until(
            lambda: (found.value(f"sum(deadpool_agent_replica_received_bytes_total{{{of_job}}})") or 0) > 0, 60, "replicas travel"
        )
        assert found.value(f'deadpool_recoveries_total{{{of_job},class="permanent"}}') == 0

        assert job.ask("inject", "kill-node", "1").returncode == 0
        until(lambda: found.value(f'deadpool_recoveries_total{{{of_job},class="permanent"}}') == 1, 60, "the recovery is counted")
        assert found.value(f'deadpool_injections_total{{{of_job},kind="kill-node"}}') == 1
        assert found.value(f'deadpool_nodes{{{of_job},role="spare"}}') == 0
        phases = found.value(f"sum(deadpool_recovery_phase_seconds_total{{{of_job}}})")
        assert phases == pytest.approx(found.value(f"deadpool_recovery_seconds_sum{{{of_job}}}"), abs=1e-6)
        until(lambda: found.value(f"sum(deadpool_agent_connected{{{of_job}}})") == 2, 60, "the lost node is no target any more")

        (group,) = found.ask("rules")["groups"]
        assert [(rule["name"], rule["lastError"]) for rule in group["rules"] if rule["health"] != "ok"] == []
    assert job.ask("stop").returncode == 0
    assert job.wait().exit_code == 143


def test_the_page_shows_a_swap_as_it_happens(launcher: Launcher) -> None:
    with browser() as window:
        options = ("--nnodes", "2", "--nproc-per-node", "1", "--spares", "1", "--dashboard")
        job = launcher.start(*options, str(ROOT / "examples" / "train_gpt.py"), "--steps", "100000", *SMALL)
        until((job.job_folder / "endpoint.json").exists, 60, "the supervisor listens")
        link = job.ask("dashboard").stdout.strip()
        address, _, key = link.partition("#")
        until(lambda: f"deadpool: page: {address.rstrip('/')}" in job.err, 60, "the launcher has said where")
        assert key not in job.err
        with opened_page(window, address) as stranger:
            stranger.get_by_label("Key").wait_for()
            assert job.job_id not in stranger.content()
        with opened_page(window, link) as page:
            page.get_by_role("heading", name=job.job_id).wait_for()
            until(lambda: job.status()["commit_step"] > 3, 80, "steps are committed")
            assert job.ask("inject", "kill-node", "1").returncode == 0
            page.get_by_role("row").filter(has_text="node1 lost").filter(has_text="node2 took rank 1").wait_for()
            page.get_by_role("log").filter(has_text="Recovered in").wait_for(state="attached")
            assert job.ask("stop").returncode == 0
            page.get_by_text("the job has ended", exact=True).wait_for()
            page.get_by_role("status").filter(has_text="The job was stopped: deadpool stop").wait_for()
        assert job.wait().exit_code == 143
