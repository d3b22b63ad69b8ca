"""Do a job's values go together? What fits no other value is refused before anything is started."""

from collections.abc import Collection, Iterator

from deadpool.host.errors import ConfigError
from deadpool.proto.config import Injection, JobConfig, Places, Transport
from deadpool.proto.faults import FAULTS, Target

_NODES_HERE_MAX, _RANKS_PER_NODE_MAX = 1024, 1024  # more are a slip of the keyboard


def check_consistency(config: JobConfig, given: Collection[str]) -> None:
    """Raises ConfigError for values that fit each by itself but not together. `given`: the fields that the user has set."""
    _check_sizes(config)
    _check_times(config)
    if not config.checkpoint_dir:
        for field, option in (("checkpoint_every", "--checkpoint-every"), ("keep", "--keep")):
            if field in given and getattr(config, field):
                raise ConfigError(f"{option} {getattr(config, field)}: say where the checkpoints go with --checkpoint-dir")
    if config.h2h is Transport.OFF and "replicas" in given:
        raise ConfigError("--h2h off: there are no replicas; leave --replicas out")
    for injection in config.injections:
        _check_target(injection, config)


def shortfalls(config: JobConfig, given: Collection[str]) -> Iterator[str]:
    """Yields a line for each value that the job cannot quite have, and runs without."""
    others = config.nnodes + config.spares - 1
    if config.h2h is Transport.OFF:
        node = "a lost node from a checkpoint" if config.checkpoint_dir else "a lost node ends the job (no --checkpoint-dir)"
        yield f"--h2h off: nothing is replicated; a lost process comes back from its node's memory, {node}"
    if config.place_replicas is not Places.RING and not config.spares:
        yield f"--place-replicas {config.place_replicas}: there are no spares (--spares) yet, so the nodes that train keep them"
    if "replicas" in given and config.replicas > others:
        yield (
            f"--replicas {config.replicas}: there are other nodes for {others} (--nnodes {config.nnodes} and --spares "
            f"{config.spares}), so that many copies are kept"
        )


def _check_sizes(config: JobConfig) -> None:
    if config.standalone and config.nnodes + config.spares > _NODES_HERE_MAX:
        raise ConfigError(
            f"--nnodes {config.nnodes} and --spares {config.spares}: all nodes are on this machine, {_NODES_HERE_MAX} at most"
        )
    if config.nproc_per_node > _RANKS_PER_NODE_MAX:
        raise ConfigError(f"--nproc-per-node {config.nproc_per_node}: {_RANKS_PER_NODE_MAX} at most")


def _check_times(config: JobConfig) -> None:
    if config.heartbeat_timeout_s <= config.heartbeat_every_s:
        raise ConfigError(
            f"--heartbeat-timeout {config.heartbeat_timeout_s:g}: must be longer than --heartbeat-interval "
            f"({config.heartbeat_every_s:g}), best three times as long"
        )
    hang_s, grace_s = config.hang_timeout_s, config.broken_collective_grace_s
    if hang_s is not None and hang_s <= grace_s:
        raise ConfigError(
            f"--hang-timeout {hang_s:g}: must be longer than --broken-collective-grace ({grace_s:g}), in which no step advances"
        )


def _check_target(injection: Injection, config: JobConfig) -> None:
    fault = FAULTS[injection.kind]
    what, count = fault.target.value, config.world_size if fault.target is Target.RANK else config.nnodes + config.spares
    if fault.netns and not config.netns:
        raise ConfigError(f"--inject {injection.kind}: each node needs a network of its own: add --netns")
    if fault.target is not Target.NONE and injection.target >= count:
        raise ConfigError(
            f"--inject {injection.kind}:{injection.target}@{injection.step}: there is no {what} {injection.target} "
            f"({what}s are 0..{count - 1})"
        )
