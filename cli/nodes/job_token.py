"""The token of a job that is started by hand: made of a secret that all its machines have and of the job's name.

So it is never sent, and differs for each job.
"""

import hmac
import os
import socket
from pathlib import Path

from deadpool.host.errors import ConfigError
from deadpool.proto.secret import make_token, read_private, write_private

TOKEN_VARIABLE = "DEADPOOL_TOKEN"


def shared_secret() -> str:
    """Returns what all machines of the job know: $DEADPOOL_TOKEN, else the text of ~/.deadpool/token, which is made if need be.

    ConfigError when others can read the file, or there can be none.
    """
    given = os.environ.get(TOKEN_VARIABLE, "")
    if given:
        return given
    path = secret_path()
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, exist_ok=True)
            fresh = path.with_name(f"token.{socket.gethostname()}.{os.getpid()}")
            write_private(fresh, make_token())
            try:
                os.link(fresh, path)  # of several machines with this folder the first one wins
            except FileExistsError:
                pass
            finally:
                fresh.unlink()
        return read_private(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; set ${TOKEN_VARIABLE} to one secret on all machines") from error


def secret_path() -> Path:
    return Path("~/.deadpool/token").expanduser()


def token_of(secret: str, job_id: str) -> str:
    """Returns the job's token."""
    return hmac.new(secret.encode(), f"deadpool job {job_id}".encode(), "sha256").hexdigest()
