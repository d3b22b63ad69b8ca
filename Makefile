# make demo, make test: the two commands. Both make .venv first; the second time that takes no time.
PYTHON ?= python3
TORCH ?= torch==2.13.0

# A job's many processes import the same files: their bytecode is kept, whatever the environment says.
export PYTHONDONTWRITEBYTECODE =

# Made anew when pyproject.toml or TORCH change.
key := $(shell { echo '$(TORCH)'; cat pyproject.toml; } | cksum | tr -dc 0-9)
installed := .venv/installed-$(key)
frameworks := .venv/frameworks-$(key)

demo_steps := 80
demo_kill := kill-node:1@40
demo_job = .venv/bin/deadpool-launch --standalone --nnodes 2 --nproc-per-node 2 --spares 1
demo_script = examples/train_gpt.py --steps $(demo_steps)

.PHONY: demo test lint format venv
venv: $(frameworks)

$(installed): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "deadpool needs Python 3.11 or newer: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --no-compile $(TORCH)
	.venv/bin/python -m pip install --quiet --no-compile --editable '.[dev]'
	@.venv/bin/python -m compileall -q -j 0 .venv/lib >/dev/null 2>&1 || true  # on all cores; pip would use one
	@rm -f .venv/installed-* && touch $@

$(frameworks): $(installed)
	.venv/bin/python -m pip install --quiet --no-compile $(TORCH) --editable '.[dev,frameworks]'
	@.venv/bin/python -m compileall -q -j 0 .venv/lib >/dev/null 2>&1 || true
	@rm -f .venv/frameworks-* && touch $@

demo: $(installed)
	@rm -rf build/demo && mkdir -p build/demo
	@echo "A GPT learns on 2 nodes x 2 ranks; node 1 is killed in the middle of step 40. Watch the spare take its place."
	$(demo_job) --log-dir build/demo/killed --summary-json build/demo/killed.json --inject $(demo_kill) \
		$(demo_script) --loss-log build/demo/killed.log --digest build/demo/killed.digest
	@echo "The same training, unbroken:"
	$(demo_job) --log-dir build/demo/unbroken --summary-json build/demo/unbroken.json \
		$(demo_script) --loss-log build/demo/unbroken.log --digest build/demo/unbroken.digest
	@echo "The losses of every rank at every step, then parameters, optimizer and RNG at the end, compared bit for bit:"
	.venv/bin/python examples/compare_runs.py build/demo/unbroken.log build/demo/killed.log
	.venv/bin/python examples/compare_runs.py build/demo/unbroken.digest build/demo/killed.digest
	@echo "Not one bit differs: a node died, and the training is the unbroken one."

# All others beside those that start jobs on this machine, which leave a core idle half of the time; their output comes last.
test: $(frameworks)
	@mkdir -p build
	@PYTHONSAFEPATH=1 .venv/bin/python -m pytest -m "not vault" >build/other-tests.log 2>&1 & \
	PYTHONSAFEPATH=1 .venv/bin/python -m pytest -m vault --durations=10; code=$$?; \
	wait $$!; others=$$?; cat build/other-tests.log; exit $$((code > others ? code : others))

lint: $(frameworks)  # whose types the examples and tests use
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

format: $(installed)
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .
