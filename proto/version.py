"""Which DeadPool is this? The parts of a job meet only parts of the same version: with any other nothing is known to hold."""

from dataclasses import dataclass
from functools import cache

from deadpool.host.version import package_version

PROTOCOL = 2  # +1 whenever what processes say to each other, or leave in files for each other, changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """Of DeadPool, as a process has it; part of messages as well. `package`: "" from one that is too old to say."""

    package: str
    protocol: int


NO_VERSION = Version(package="", protocol=0)


@cache
def own_version() -> Version:
    return Version(package=package_version(), protocol=PROTOCOL)


def version_of(fields: object) -> Version:
    """Returns the version that somebody has written as JSON; NO_VERSION for whatever is none."""
    if not isinstance(fields, dict):
        return NO_VERSION
    package, protocol = fields.get("package"), fields.get("protocol")
    return Version(package=package, protocol=protocol) if isinstance(package, str) and isinstance(protocol, int) else NO_VERSION


def refusal(who: str, theirs: Version) -> str:
    """Returns in one line why `who` can have no part in a job of ours, "" when it is of this version."""
    own = own_version()
    if theirs == own:
        return ""
    return f"{who} has DeadPool {_shown(theirs)}, here is {_shown(own)}: install the same version everywhere"


def _shown(version: Version) -> str:
    return f"{version.package} (protocol {version.protocol})" if version.package else "of an older version"
