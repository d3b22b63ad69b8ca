"""What torchrun's other options mean here: an error, a line that says that one changes nothing, or a name."""

from collections.abc import Iterator, Mapping
from typing import Any

from deadpool.host.errors import ConfigError

MEETING = ("rdzv-endpoint", "node-rank", "master-addr", "master-port", "local-addr")  # how several machines find each other
KNOWN_BACKENDS = ("static", "c10d")


def check_foreign(given: Mapping[str, Any], *, machines: int) -> None:
    """Raises ConfigError for what cannot be had. `machines`: the most nodes that the job may have."""
    if "logs-specs" in given:
        raise ConfigError(f"--logs-specs {given['logs-specs']}: torchrun's plugins do not run here; use -r, -t, --log-dir")
    if machines == 1 and given.get("node-rank", 0) > 0:
        raise ConfigError(f"--node-rank {given['node-rank']}: a job of one node has node rank 0 only; is --nnodes missing?")


def notes(given: Mapping[str, Any], *, machines: int, standalone: bool) -> Iterator[str]:
    """Yields one line for each option that is accepted and changes nothing."""
    if given.get("rdzv-backend", "static") not in KNOWN_BACKENDS:
        yield f"--rdzv-backend {given['rdzv-backend']}: not used, nodes meet at the job's own supervisor"
    if "rdzv-conf" in given and "join_timeout" not in str(given["rdzv-conf"]):
        yield "--rdzv-conf: not used, but for join_timeout: there is no rendezvous to set up"
    if "monitor-interval" in given:
        yield "--monitor-interval: not used, the end of a rank is seen immediately"
    if given.get("event-log-handler", "null") != "null":
        yield f"--event-log-handler {given['event-log-handler']}: not used, events are in the log folder's events.jsonl"
    if given.get("master-port") and not standalone and (machines == 1 or not given.keys() & {"master-addr", "node-rank"}):
        yield "--master-port: not used, every generation's store takes a free port; ranks read MASTER_PORT"


def run_id(given: Mapping[str, Any], *, standalone: bool) -> str:
    """Returns TORCHELASTIC_RUN_ID as --rdzv-id gives it, "" for the job's own name."""
    return "" if standalone else str(given.get("rdzv-id", ""))
