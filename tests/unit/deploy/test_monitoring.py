"""deploy/monitoring and docs/monitoring.md speak of metrics that there are, and of all of them."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus import program
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import CollectorRegistry

import deadpool
from deadpool.agent.health import metrics as agent_metrics
from deadpool.agent.health.host_pressure import Usage
from deadpool.host.metrics_server import Collected
from deadpool.proto.messages import Heartbeat, RankProgress, Reading
from deadpool.proto.messages.status import JobStatus, NodeStatus, ReportedNumber
from deadpool.supervisor.report import metrics as job_metrics
from deadpool.supervisor.report.measures import JobMeasures

HOUSE = Path(deadpool.__file__).parent
MONITORING = (HOUSE / "deploy" / "monitoring").resolve()
DOCS = MONITORING.parents[1] / "docs" / "monitoring.md"


def families() -> Iterator[Metric]:
    """Yields every family that a supervisor or an agent may serve."""
    node = NodeStatus(
        node_id="n", index=0, role="member", host="h", heartbeat_age_s=0.0, cpu_share=0.0, memory_share=0.0, shm_free_bytes=0,
        standins_ready=0,
    )  # fmt: skip
    status = JobStatus(
        job_id="j", phase="run", generation=1, step=1, commit_step=1, steps_per_s=1.0, world_size=1, hooked=True,
        exposed_stall_s=0.0, nodes=(node,), reported=(ReportedNumber(name="loss", value=1.0),),
    )  # fmt: skip
    yield from job_metrics.families(JobMeasures(status=status, spares=1, seats=1, events={}, commit_age_s=0.0))
    rank = RankProgress(rank=0, pid=1, step=0, commit_step=0, steps_done=0, exposed_stall_s=0.0)
    readings = tuple(Reading(name=name, value=0.0) for name in agent_metrics.OF_READINGS)
    beat = Heartbeat(generation=1, ranks=(rank,), readings=readings)
    of_agent = agent_metrics.NodeMeasures(job_id="j", node_id="n", heartbeat=beat, connected=True, usage=Usage())
    yield from agent_metrics.families(of_agent)


def series() -> dict[str, set[str]]:
    """Returns the labels of every series, by its name."""
    return {sample.name: set(sample.labels) for family in families() for sample in family.samples}


def dashboard_queries() -> list[str]:
    board = json.loads((MONITORING / "grafana.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    queries += [each["expr"] for each in board["annotations"]["list"]]
    return queries + [each["definition"] for each in board["templating"]["list"] if "definition" in each]


def rules() -> str:
    return "\n".join(line for line in (MONITORING / "rules.yml").read_text().splitlines() if not line.lstrip().startswith("#"))


def test_names_follow_the_conventions() -> None:
    units = ("_seconds", "_bytes", "_ratio", "_celsius")
    for family in families():
        assert family.name.startswith("deadpool_"), family.name
        assert family.documentation.strip(), family.name
        assert family.documentation[0].isupper() or family.documentation[0].isdigit(), family.name
        assert not any(unit in family.name and not family.name.endswith((unit, f"{unit}_total")) for unit in units), family.name


def test_every_metric_that_the_dashboard_and_the_alerts_name_exists() -> None:
    known = series()
    for query in [*dashboard_queries(), rules()]:
        for name, labels in re.findall(r"\b(deadpool_(?!job\b|part\b|node\b)\w+)(?:\{([^}]*)\})?", query):
            assert name in known, f"{name}: no such metric"
            assert set(re.findall(r"(\w+)\s*(?:=~|!=|=)", labels)) <= known[name], f"{name}: {labels}"


def test_the_dashboards_panels_lie_side_by_side() -> None:
    board = json.loads((MONITORING / "grafana.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
    identities = [panel["id"] for panel in board["panels"]]
    assert len(identities) == len(set(identities))


def test_each_alert_is_tried_and_explained() -> None:
    alerts = re.findall(r"- alert: (\w+)", rules())
    assert len(alerts) > 10
    tried, explained = (MONITORING / "rules_test.yml").read_text(), DOCS.read_text()
    for alert in alerts:
        assert f'alertname="{alert}"' in tried
        assert f"`{alert}`" in explained


def test_every_metric_is_in_the_docs() -> None:
    text = DOCS.read_text()
    lines = []
    for family in families():
        names = f"{family.name}{'_total' if family.type == 'counter' else ''}"
        labels = sorted(set().union(*(sample.labels for sample in family.samples)) - {"job_id", "node", "le"})
        shown = f"{{{', '.join(labels)}}}" if labels else ""
        lines.append(f"| `{names}{shown}` | {family.type} | {family.documentation} |")
    missing = [line for line in lines if line not in text]
    assert not missing, "\n".join(missing)
    assert set(re.findall(r"^\| `(deadpool_\w+)", text, re.M)) == {re.findall(r"`(\w+)", line)[0] for line in lines}


def test_promtool_accepts_the_configuration_and_the_alerts_fire_when_they_should() -> None:
    run(program("promtool"), "check", "config", str(MONITORING / "prometheus.yml"))
    run(program("promtool"), "test", "rules", str(MONITORING / "rules_test.yml"))


def test_promtool_can_read_every_query_of_the_dashboard(tmp_path: Path) -> None:
    queries = [query for query in dashboard_queries() if not query.startswith("label_values(")]
    rule: list[dict[str, Any]] = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    path = tmp_path / "rules.json"  # which is YAML as well
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rule}]}))
    run(program("promtool"), "check", "rules", str(path))


@pytest.mark.parametrize("of_agent", [False, True])
def test_promtool_finds_nothing_to_mend_in_the_metrics(of_agent: bool) -> None:
    registry = CollectorRegistry()
    registry.register(Collected(lambda: [each for each in families() if each.name.startswith("deadpool_agent_") == of_agent]))
    run(program("promtool"), "check", "metrics", text=generate_latest(registry))


def run(*command: str, text: bytes = b"") -> None:
    done = subprocess.run(command, input=text, capture_output=True, timeout=60, check=False)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)}\n{done.stdout.decode()}{done.stderr.decode()}")
