"""deadpool-launch: starts a training script on nodes, as torchrun does, and keeps it alive."""

import sys
from collections.abc import Sequence
from typing import Any

import click

from deadpool.cli.environment import read_environment
from deadpool.cli.exit_codes import guarded, say
from deadpool.cli.options.read import options_of
from deadpool.cli.options.setting import CONTEXT_SETTINGS, HeadedCommand
from deadpool.cli.options.settings import with_settings
from deadpool.cli.plan.resolve import resolve
from deadpool.deploy.slurm.srun_options import is_of_srun
from deadpool.host.errors import ConfigError
from deadpool.host.version import PACKAGE


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 done, 1 the job failed, 2 usage or configuration, 128+n on signals."""
    return guarded(lambda: _launched(list(arguments)))


def _launched(arguments: list[str]) -> Any:
    try:
        return launch.main(arguments, prog_name="deadpool-launch", standalone_mode=False)
    except click.NoSuchOption as error:
        if is_of_srun(error.option_name):
            raise ConfigError(f"{error.option_name} is an option of sbatch and srun: put it there (#SBATCH, salloc)") from error
        raise


@click.command(cls=HeadedCommand, context_settings=CONTEXT_SETTINGS)
@with_settings
@click.version_option(package_name=PACKAGE)
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def launch(context: click.Context, /, **_: Any) -> int:
    """Run SCRIPT with ARGS on nodes x ranks, with spare nodes that take the place of dead ones."""
    plan = resolve(options_of(context), read_environment())
    from deadpool.cli.start import start  # what only a valid command line needs: errors are instant

    return start(plan, say)


if __name__ == "__main__":
    main()
