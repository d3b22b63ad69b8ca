"""Options of srun and sbatch that people try on the launcher. Those that torchrun or we have as well are not among them."""

_LONG = """
account array batch begin clusters comment constraint container contiguous core-spec cores-per-socket cpu-bind cpu-freq
cpus-per-gpu cpus-per-task deadline dependency distribution exact exclude exclusive export gpu-bind gpu-freq gpus gpus-per-node
gpus-per-socket gpus-per-task gres gres-flags hint het-group input job-name kill-on-bad-exit label licenses mem mem-bind
mem-per-cpu mem-per-gpu mpi multi-prog nice no-kill no-requeue nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu
ntasks-per-node ntasks-per-socket open-mode output overcommit overlap oversubscribe partition priority pty qos reservation signal
sockets-per-node switches threads-per-core time time-min tmp tres-per-task unbuffered wait wckey
"""
SRUN_OPTIONS = frozenset([f"--{name}" for name in _LONG.split()] + [f"-{letter}" for letter in "ABCDGJLMNOPSTXZcdeijklnopquwx"])


def is_of_srun(option: str) -> bool:
    """Returns whether srun or sbatch would know the option, written as it was given: `--gres`, `-N`."""
    return option.replace("_", "-") in SRUN_OPTIONS
