"""Runs an example as a script that knows nothing of DeadPool: unhooked.py SCRIPT ARGUMENTS... Its hooks find no job."""

import os
import runpy
import sys

for name in [name for name in os.environ if name.startswith("DEADPOOL_")]:
    del os.environ[name]
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
