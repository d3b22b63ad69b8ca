#!/bin/bash
# The same by hand: asks Slurm for nodes, then runs deadpool-launch on them with your arguments. Ctrl-C ends it, the nodes go back.
#
#     ./interactive.sh -N 3 -- --spares 1 --nproc-per-node 2 my_script.py --its --options
#
# Before `--`: for salloc. After it: for deadpool-launch.
set -euo pipefail
for_salloc=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do for_salloc+=("$1"); shift; done
[ $# -gt 1 ] || { echo "usage: $0 [salloc's options] -- [deadpool-launch's options] SCRIPT [ARGS]" >&2; exit 2; }
shift
exec salloc --ntasks-per-node=1 --exclusive --no-kill "${for_salloc[@]}" deadpool-launch "$@"
