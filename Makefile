# make run          open the dashboard; first creates a virtual environment and installs vramtop into it (ARGS='--demo': flags)
# make test         the quick tests (AREA=monitor, or a path below tests/: a part of them; JOBS=1: one process)
# make test-all     the tests marked slow too: every variant, long fuzzing, whole matrices
# make test-newest  the quick tests with the newest versions that pyproject.toml allows, in an environment of their own
# make lock         write requirements/: what pyproject.toml needs, with hashes (ARGS=--upgrade: the newest versions of all)
# make check        make lint, types and imports
# make lint         ruff: lint and format
# make types        mypy --strict
# make imports      import contracts between the rooms
# make accuracy     predicted and measured memory, row by row (ARGS='--method auto': the deepest method available)
# make figures      write the tables of docs/explanation from the code and the accuracy table
# make random-jobs  the closed form against the rehearsal of random jobs (ARGS='60 --seed 101')
# make gpu          measure on a GPU what is predicted elsewhere, part by part (PART=2: one of them; ARGS=--cpu: without a GPU)
# make bench        cost of the dashboard, beside other tools, and of estimates (ARGS='--only monitors': a part; --help: more)
# make bench-probe  cost of the probe for the program that it watches (CPU only; some two minutes)
# make architecture draw the rooms and arrows (docs/pictures/rooms.svg) from the imports
# make completion   write tui/cli/shell/: completions for bash, zsh and fish, and the manual page, from the command line's parsers
# make picture      draw the pictures in docs/ and record the tour, from the demo recording
# make demo         record the demo recording
# make reference    write the reference pages in docs/reference/ from the code
# make docs         build the documentation into build/site; a warning is an error
# make docs-serve   serve the documentation while you write it
# make dist         build the sdist and the wheel into dist/, as a release does
# make image        build the container image vramtop:VERSION (CONTAINER=podman: with another program than docker)
# make clean        remove the virtual environment and everything that is built

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TYPING := build/typing/vramtop
# One more than there are cores: many tests wait for programs.
JOBS ?= $(shell echo $$(($$(env -u OMP_NUM_THREADS nproc 2> /dev/null || echo 2) + 1)))
AREA ?=
PART ?=
CONTAINER ?= docker
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
# The variable stops an advertisement that the theme prints at each build.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs
# Versions and hashes are in requirements/; --no-deps, because those files list all that is needed.
INSTALL := $(BIN)/python -m pip install --quiet
INSTALL_LOCKED := $(INSTALL) --no-deps --require-hashes --requirement
INSTALL_VRAMTOP := $(INSTALL) --no-deps --no-build-isolation --editable .
COMPILE := build/lock/bin/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate \
	--custom-compile-command 'make lock' $(ARGS) pyproject.toml -
# One torch thread per process: the processes share the cores. Bytecode is kept: tests start vramtop a thousand times.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal

# Prints the list above: `make` alone.
help:
	@sed -n -e '/^$$/q' -e 's/^# //p' Makefile

.PHONY: help run test test-all test-newest lock check lint types imports accuracy figures random-jobs gpu bench bench-probe picture architecture completion demo reference docs docs-serve dist image clean

run: $(VENV)/installed
	@$(if $(ARGS),$(BIN)/vramtop $(ARGS),if $(BIN)/vramtop --once > /dev/null; then $(BIN)/vramtop; else $(BIN)/vramtop --demo; fi)

test: $(VENV)/installed-for-tests
	$(PYTEST) -m "not slow" $(AREA:%=tests/%) $(ARGS)

test-all: $(VENV)/installed-for-tests
	$(PYTEST) $(AREA:%=tests/%) $(ARGS)

test-newest: requirements/torch.txt
	$(PYTHON) -m venv --clear build/newest
	build/newest/bin/python -m pip install --quiet --constraint requirements/torch.txt --editable '.[torch,dev]'
	touch build/newest/installed-for-tests
	$(MAKE) test VENV=build/newest

# Versions that are in the files stay, unless pyproject.toml asks for others. setuptools, from [build-system], builds vramtop.
# torch has one file of its own: its builds for CPU and for each CUDA have hashes and dependencies of their own.
lock:
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --upgrade uv
	sed -n 's/^requires = \["\(.*\)"\]/\1/p' pyproject.toml > build/lock/setuptools.txt
	$(COMPILE) --extra torch --extra dev --constraint requirements/torch.txt --output-file requirements/tests.txt < build/lock/setuptools.txt
	sed -i -E '/^(torch|triton|cuda-|nvidia-[^m])/,/[^\]$$/d' requirements/tests.txt
	$(COMPILE) --extra docs --constraint requirements/tests.txt --output-file requirements/docs.txt < build/lock/setuptools.txt
	$(COMPILE) --constraint requirements/tests.txt --output-file requirements/run.txt < build/lock/setuptools.txt

check: lint types imports

lint: $(VENV)/installed-for-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-for-tests $(TYPING)
	MYPYPATH=build/typing $(BIN)/mypy -p vramtop

imports: $(VENV)/installed-for-tests $(TYPING)
	cd build/typing && PYTHONPATH=. $(abspath $(BIN))/lint-imports --config ../../pyproject.toml

completion: $(VENV)/installed-for-tests
	$(BIN)/python docs/scripts/make_completion.py

accuracy: $(VENV)/installed-for-tests
	$(BIN)/python tests/accuracy/report.py $(ARGS)

figures: $(VENV)/installed-for-tests
	$(BIN)/python docs/scripts/make_explanation.py
	$(BIN)/python docs/scripts/make_accuracy_tables.py $(ARGS)
	$(BIN)/python docs/scripts/make_gpu_page.py

random-jobs: $(VENV)/installed-for-tests
	$(BIN)/python tests/accuracy/random_jobs.py $(or $(ARGS),60)

# On a bare machine: nothing but a Python is needed beforehand.
gpu:
	$(PYTHON) tests/accuracy/gpu/start.py $(PART:%=--part %) $(ARGS)

bench: $(VENV)/installed-for-tests $(VENV)/peers/installed
	$(BIN)/python tests/bench/bench.py $(ARGS)

bench-probe: $(VENV)/installed-for-tests
	$(BIN)/python tests/bench/probe_cost.py $(ARGS)

picture: $(VENV)/installed-for-tests
	$(BIN)/python docs/scripts/make_pictures.py
	$(BIN)/python docs/scripts/make_recording.py

architecture: $(VENV)/installed-for-tests $(TYPING)
	PYTHONPATH=build/typing $(BIN)/python docs/scripts/make_architecture.py

demo: $(VENV)/installed
	$(BIN)/python docs/scripts/make_demo.py

reference: $(VENV)/installed-for-docs
	$(BIN)/python docs/scripts/make_reference.py
	$(BIN)/python docs/scripts/make_explanation.py

docs: $(VENV)/installed-for-docs
	$(MKDOCS) build --strict
	@echo "build/site/index.html"

docs-serve: $(VENV)/installed-for-docs
	$(MKDOCS) serve $(ARGS)

# From a clean copy of what is committed: what an earlier build left, and files that git does not know, stay out.
dist: $(VENV)/installed-for-tests
	rm -rf build/dist dist
	mkdir -p build/dist
	git archive HEAD | tar -x -C build/dist
	$(BIN)/python -m build --outdir dist build/dist

image:
	$(CONTAINER) build --file recipes/Containerfile --tag vramtop:$(VERSION) --label org.opencontainers.image.version=$(VERSION) $(ARGS) .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml requirements/run.txt | $(VENV)/bin/python
	$(INSTALL_LOCKED) requirements/run.txt
	$(INSTALL_VRAMTOP)
	touch $@

$(VENV)/installed-for-tests: pyproject.toml requirements/tests.txt requirements/torch.txt | $(VENV)/bin/python
	$(INSTALL_LOCKED) requirements/tests.txt
	$(INSTALL) --requirement requirements/torch.txt
	$(INSTALL_VRAMTOP)
	touch $@ $(VENV)/installed

$(VENV)/installed-for-docs: pyproject.toml requirements/docs.txt | $(VENV)/bin/python
	$(INSTALL_LOCKED) requirements/docs.txt
	$(INSTALL_VRAMTOP)
	touch $@

# Other monitors, for the bench, in an environment of their own: they need other versions of the same libraries.
$(VENV)/peers/installed: tests/bench/peers.txt | $(VENV)/bin/python
	$(PYTHON) -m venv $(VENV)/peers
	$(VENV)/peers/bin/python -m pip install --quiet --requirement tests/bench/peers.txt || echo "other monitors could not be installed: the bench continues without them"
	touch $@

# The folders under their installed names, for tools that read sources instead of importing.
$(TYPING):
	mkdir -p $@
	for folder in estimator monitor tui; do ln -sfn ../../../$$folder $@/$$folder; done
	ln -sfn ../../../vramtop/__init__.py $@/__init__.py
