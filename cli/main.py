"""deadpool: what a person asks of a job. What takes long to import is imported by the command that needs it."""

import contextlib
import os
import sys
from collections.abc import Sequence

import click

from deadpool.cli.commands import act, look
from deadpool.cli.commands.lazy import Elsewhere, LazyGroup
from deadpool.cli.commands.slurm_scripts import SCRIPTS, script_text
from deadpool.cli.exit_codes import guarded
from deadpool.host.version import PACKAGE


def deadpool() -> None:
    """The command. It ends without freeing, one by one, what an answer about thousands of ranks consists of."""
    exit_code = run(sys.argv[1:])
    with contextlib.suppress(OSError):  # whoever has read it has gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(exit_code)


def run(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 done, 1 the job does not answer, 2 usage, or no such job."""
    return guarded(lambda: commands.main(list(arguments), prog_name="deadpool", standalone_mode=False))


_ELSEWHERE = {
    "doctor": Elsewhere("deadpool.cli.commands.doctor", "doctor", "Look for what would trouble a job."),
    "drill": Elsewhere("deadpool.cli.commands.drill", "drill", "Prove that a script recovers bit for bit."),
    "simulate": Elsewhere("deadpool.cli.commands.simulate", "simulate", "Expect goodput of so many nodes, failures and spares."),
}


@click.group(cls=LazyGroup, elsewhere=_ELSEWHERE, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=PACKAGE)
def commands() -> None:
    """Drill a script; look at a running job, free a node, inject a failure, stop it. Jobs are started with deadpool-launch."""


for each in (
    look.status, look.dashboard, look.events, look.recoveries, look.diagnose, look.trace, look.logs,
    act.inject, act.drain, act.stop,
):  # fmt: skip
    commands.add_command(each)


@commands.command(short_help="Completion of commands and options for a shell.")
@click.argument("shell", metavar="bash|zsh|fish", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> None:
    """Print what makes SHELL complete deadpool and deadpool-launch: eval "$(deadpool completion bash)"."""
    from deadpool.cli.commands.completion import completion_script
    from deadpool.cli.launch import launch

    click.echo(completion_script(shell, {"deadpool": commands, "deadpool-launch": launch}), nl=False)


@commands.command(short_help="Print a script for Slurm.")
@click.argument("name", metavar="[train|interactive|add-spare]", type=click.Choice(tuple(SCRIPTS)), default="train")
def slurm_script(name: str) -> None:
    """Print a script for Slurm: a training job, the same by hand, or spares for a running job."""
    click.echo(script_text(name), nl=False)


if __name__ == "__main__":
    deadpool()
