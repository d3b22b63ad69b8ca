"""The scripts for Slurm that come with the package."""

SCRIPTS = {"train": "train.sbatch", "interactive": "interactive.sh", "add-spare": "add-spare.sbatch"}


def script_text(name: str) -> str:
    """Returns the text of one of SCRIPTS."""
    from importlib.resources import files  # takes longer than all else that a command line imports

    return files("deadpool.deploy.slurm").joinpath(SCRIPTS[name]).read_text()
