# make demo: SGD and SGDP train a small ResNet for half a minute; eight lines, and a page about them.  make test: lint, types and the whole test suite.
# make test-long: more cases of what the suite holds: other types, chains and substitutes.
# make results: all studies that have not run yet (about two hours and a half on two cores), and experiments/results/ of them.
# make docs: the site, with gallery, notebooks and reference made from the code, in build/docs/index.html (about a minute and a half).
# All set up .venv first, once; PYTHON=python3.12 picks another interpreter. The demo takes a .venv of yours if spherenorm is installed in it.

PYTHON ?= python3
BIN := .venv/bin
SET_UP := .venv/.set-up
RUNS_DEMO := $(shell test ! -e .venv/.by-make && $(BIN)/python -c 'import spherenorm_experiments' 2>/dev/null && echo yes)

unexport PYTHONDONTWRITEBYTECODE  # the suite starts many Pythons, which would compile all modules anew

.PHONY: demo test test-long results docs clean

demo: $(if $(RUNS_DEMO),,$(SET_UP))
	$(BIN)/spherenorm run experiments/studies/norm_growth.py

test: $(SET_UP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy & types=$$!; $(BIN)/python -m pytest -n 2 --durations=10; tests=$$?; \
		wait $$types && exit $$tests  # mypy has a core to itself while the workers collect

test-long: $(SET_UP)
	$(BIN)/python -m pytest -n 2 -m long

results: $(SET_UP)
	$(BIN)/spherenorm run --tier evidence
	$(BIN)/spherenorm run --tier evidence $(foreach study,equilibrium lr_transfer norm_control warm_up,experiments/studies/$(study).py)
	$(BIN)/spherenorm results --rows

docs: $(SET_UP)
	$(BIN)/python -m sphinx -j auto -b html -W --keep-going -q -d build/doctrees docs build/docs
	@echo build/docs/index.html

$(SET_UP): pyproject.toml constraints.txt
	@test ! -e .venv -o -e $@ -o -e .venv/.by-make || { echo "this .venv is not make's: 'make clean' removes it," \
		"'touch $@' makes the targets use it as it is"; exit 1; }
	$(PYTHON) -m venv --clear .venv || { echo "no venv: on Debian, apt-get install python3-venv"; exit 1; }
	touch .venv/.by-make
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps torchattacks  # it asks for torchvision
	touch $@

clean:
	rm -rf .venv
