"""The errors that DeadPool raises. A dead node is an event, not an exception; a broken invariant is an assert."""


class DeadpoolError(Exception):
    """Base of all errors of ours. Messages carry values and say what to do next."""


class ConfigError(DeadpoolError):
    """The user's input cannot be used; the command line turns it into one line and exit code 2."""


class ProtocolError(DeadpoolError):
    """A peer said something that the protocol does not allow at that point, or without the token."""


class UnavailableError(DeadpoolError):
    """A peer could not be reached just now; retry."""


class SnapshotError(DeadpoolError):
    """A snapshot or replica is torn, fails its checksum or does not fit the state that it should restore."""


class JobFailedError(DeadpoolError):
    """The job ended without success; the command line exits with code 1."""
