# `make help` lists the targets. What they make lands in .venv and build.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help install lab run figures site student instructor handout grade test unit \
	bench lint format clean

PYTHON ?= python3
PROFILE ?= laptop
JUPYTER_ARGS ?=
RUN_ARGS ?=
FIGURES_ARGS ?=
GRADE_ARGS ?= handed_in
PYTEST_ARGS ?=
DEVICE ?= cpu
BENCH_ARGS ?=

BIN := .venv/bin
COURSE := .venv/.course
INSTALLED := .venv/.installed
# What Python compiles is kept, or every process would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE
# Workers with one thread each, whose number tests/conftest.py knows; who is done first
# takes half of what another has left.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal
# Jupyter refuses to start for the superuser, who is the only user in many containers.
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)
# Notebooks run inside notebooks/: a relative folder must be made absolute here.
ifdef FEDLAB_DATA
override FEDLAB_DATA := $(abspath $(FEDLAB_DATA))
export FEDLAB_DATA
endif
ifdef FEDLAB_WEIGHTS
override FEDLAB_WEIGHTS := $(abspath $(FEDLAB_WEIGHTS))
export FEDLAB_WEIGHTS
endif

help:  ## this list
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/^([a-z]+):.*## */  make \1\t/' | expand -t 18

# What students and lecturers need (COURSE), and what developers need beside it. Python
# compiles modules when they are first imported; all of them at once take a minute.
$(COURSE) $(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("the pinned \
	versions need Python 3.11 or newer; found " + sys.version.split()[0] + " – name \
	another interpreter: make PYTHON=/path/to/python3.11 …")'
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --upgrade-deps .venv
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt \
	--editable '.[$(if $(filter $(COURSE),$@),course,dev)]'
	@touch $@ $(COURSE)

install: $(INSTALLED)  ## create .venv with the tested versions, for developers

# Readers work in a copy, so that tracked files do not change. The server's root is the
# copy, which has figures/ beside notebooks/ for the images that chapters show. Its
# settings save widgets, so that a saved chapter shows them before its kernel starts.
lab: $(COURSE)  ## open JupyterLab on your copy in build/copy (JUPYTER_ARGS="--no-browser")
	@$(BIN)/python -m fedlab_course.editions copy
	$(BIN)/jupyter lab $(AS_ROOT) --ServerApp.root_dir='$(CURDIR)/build/copy' \
	--LabApp.app_settings_dir='$(CURDIR)/fedlab_course/lab' \
	--LabApp.default_url=/lab/tree/notebooks/00_tour.ipynb $(JUPYTER_ARGS)

run: $(COURSE)  ## execute every chapter into build/ (PROFILE=laptop RUN_ARGS="…")
	@$(BIN)/python -m fedlab_course.runner --profile $(PROFILE) $(RUN_ARGS)

figures: $(COURSE)  ## draw figures/ again from their tables (FIGURES_ARGS="…")
	@$(BIN)/python -m fedlab_course.redraw figures $(FIGURES_ARGS)

site: $(INSTALLED)  ## the executed course as web pages, in build/site (PROFILE=laptop)
	@$(BIN)/python -m fedlab_course.site --profile $(PROFILE)

student: $(COURSE)  ## chapters without solutions, in build/student
	@$(BIN)/python -m fedlab_course.editions student

instructor: $(COURSE)  ## chapters with solutions, for nbgrader and otter too
	@$(BIN)/python -m fedlab_course.editions instructor

handout: $(COURSE)  ## build/handout: a folder for students, installed with pip
	@$(BIN)/python -m fedlab_course.handout

grade: $(COURSE)  ## grade what lies in handed_in/ (GRADE_ARGS="folder --jobs 4")
	@$(BIN)/python -m fedlab_course.grading $(GRADE_ARGS)

test: lint  ## all tests, chapters at smoke size included (PYTEST_ARGS="…")
	@$(PYTEST) $(PYTEST_ARGS)

unit: lint  ## the fast tests only
	@$(PYTEST) -m 'not slow' $(PYTEST_ARGS)

bench: $(INSTALLED)  ## seconds and memory beside plain PyTorch (DEVICE=cuda BENCH_ARGS="…")
	@$(BIN)/python -m tests.benchmarks.bench --device $(DEVICE) $(BENCH_ARGS)

lint: $(INSTALLED)  ## check rules and layout without changing a file
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(INSTALLED)  ## put every file into the common layout
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:  ## delete build, grades and sweeps included, except your copy of the chapters
	find build -mindepth 1 -maxdepth 1 ! -name copy -exec rm -rf {} + 2>/dev/null || true
	rm -rf .pytest_cache .ruff_cache .import_linter_cache
