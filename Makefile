# Everything runs inside .venv, which the targets make for themselves and reuse.
# Needs: Python 3.11 or newer, make, git, and a package registry that pip can reach.

.DEFAULT_GOAL := help
.PHONY: help demo test wheel-test lint docs tutorials bench clean distclean setup setup-run setup-docs

VENV := .venv
PY := $(VENV)/bin/python
PYTHON ?=
TEST_ARGS ?= -n auto --dist loadgroup
DEMO_OUT ?= runs/demo

# On Linux, plain pip takes a torch with CUDA, several gigabytes. Where this index answers, the processor's build of the pinned
# version comes from it instead; TORCH_INDEX= (empty) takes what pip takes, and so does an environment that has torch already.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

# One worker per core, one thread per worker: threads inside workers would fight over the cores.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

# The processor's torch before the rest, if there is none yet and its index answers within seconds; else pip goes its own way.
define cpu_torch
	if [ -n "$(TORCH_INDEX)" ] && [ "$$(uname -s)" = Linux ] && "$(PY)" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is not None)'; then \
	  pinned="$$(sed -n 's/^torch==//p' constraints.txt)"; \
	  if "$(PY)" -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)' "$(TORCH_INDEX)/torch/" 2>/dev/null; then \
	    "$(PY)" -m pip install --disable-pip-version-check --quiet --no-deps --retries 1 --index-url "$(TORCH_INDEX)" "torch==$$pinned" >"$(VENV)/torch.log" 2>&1 \
	      && echo "  torch $$pinned for the processor, from $(TORCH_INDEX)" \
	      || echo "  torch for the processor could not be had from $(TORCH_INDEX); pip takes its own."; \
	  fi; \
	fi;
endef

# install(extras): brings .venv up to date, or does nothing when the stamp says that it is.
# The stamp holds the folder and a checksum, so a moved clone or a changed requirement is noticed; it is written last,
# so an interrupted set-up is taken up again; a .venv whose Python or pip does not start is made anew.
define install
	@set -eu; extras="$(1)"; stamp="$(VENV)/.ready-$$extras"; \
	want="$$(pwd) $$(cat pyproject.toml constraints.txt | cksum)"; \
	if [ -x "$(PY)" ] && [ "$$(cat "$$stamp" 2>/dev/null || true)" = "$$want" ] && "$(PY)" -c '' 2>/dev/null; then exit 0; fi; \
	if [ -e "$(VENV)" ] && ! "$(PY)" -m pip --version >/dev/null 2>&1; then \
	  echo "The environment in $(VENV) is incomplete; making it anew."; rm -rf "$(VENV)"; \
	fi; \
	if [ ! -e "$(VENV)" ]; then \
	  found=""; seen=""; \
	  for name in $(PYTHON) python3.11 python3.12 python3.13 python3.14 python3 python; do \
	    command -v "$$name" >/dev/null 2>&1 || continue; \
	    version="$$("$$name" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" || continue; \
	    seen="$$seen $$name=$$version"; \
	    if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then found="$$name"; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    if [ -n "$$seen" ]; then echo "sfumato needs Python 3.11 or newer, and this machine has only:$$seen." >&2; \
	    else echo "sfumato needs Python 3.11 or newer, and no Python was found." >&2; fi; \
	    echo "Install one, or say where it is: make $(firstword $(MAKECMDGOALS)) PYTHON=/path/to/python3.11" >&2; exit 1; \
	  fi; \
	  echo "Making the environment $(VENV) with $$found (Python $$version)."; \
	  if ! "$$found" -m venv "$(VENV)"; then \
	    rm -rf "$(VENV)"; \
	    echo "$$found cannot make an environment: install its venv module (on Debian and Ubuntu: python3-venv)." >&2; exit 1; \
	  fi; \
	fi; \
	echo "Installing sfumato and what it needs ($$extras); the first time this downloads about 400 MB, or several thousand where torch comes with CUDA."; \
	if [ "$$extras" = run ]; then target=.; else target=".[$$extras]"; fi; \
	rm -f "$$stamp"; log="$(VENV)/install.log"; code="$(VENV)/install.code"; \
	$(cpu_torch) \
	{ "$(PY)" -m pip install --disable-pip-version-check --no-color --progress-bar off -c constraints.txt -e "$$target" 2>&1; \
	  echo $$? > "$$code"; } | tee "$$log" | awk '/Downloading .* MB\)/ {print "  " $$2, $$3, $$4; fflush()}'; \
	if [ "$$(cat "$$code")" != 0 ]; then \
	  grep -v '^WARNING: Location' "$$log" | tail -n 15 >&2; \
	  echo "The installation failed; the reason is above and in $$log. Check that pip reaches a package registry, then type the same again." >&2; exit 1; \
	fi; \
	printf '%s\n' "$$want" > "$$stamp"; \
	echo "Installed."
endef

help: ## list the targets (the default)
	@echo "Targets (each one sets up what it needs):"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' Makefile

demo: setup-run ## private synthetic Fashion-MNIST with a report, from nothing, in runs/demo
	@"$(PY)" -m sfumato demo --out "$(DEMO_OUT)"

test: setup ## run the tests (TEST_ARGS="-m slow" for the slow ones)
	@$(TEST_ENV) "$(PY)" -m pytest $(TEST_ARGS)

wheel-test: setup ## build the wheel and run it in an environment with nothing but what it requires
	@$(TEST_ENV) "$(PY)" -m pytest -m slow tests/test_wheel.py

lint: setup ## style, types and the direction of imports
	@"$(PY)" -m ruff check .
	@"$(PY)" -m ruff format --check .
	@"$(PY)" -m mypy
	@"$(VENV)/bin/lint-imports" --no-logo

docs: setup-docs ## build the documentation into site/
	@"$(PY)" -m sfumato.testing.walk > docs/walk.md
	@"$(PY)" -m sfumato.testing.rooms docs/design.md
	@"$(PY)" -m sfumato methods --markdown > docs/settings.md
	@"$(PY)" -m sfumato methods --markdown --preset paper > docs/presets.md
	@"$(PY)" -m sfumato schema json > docs/sfumato-schema.json
	@NO_MKDOCS_2_WARNING=1 "$(PY)" -m mkdocs build --strict --quiet
	@echo "The documentation is in site/; open site/index.html."

tutorials: setup ## run the notebooks of docs/tutorials and write their pages anew (minutes)
	@"$(PY)" benchmarks/tutorials.py

bench: setup ## measure speed and accuracy (long; BENCH_ARGS="NAME …" for some, --results only writes RESULTS.md)
	@"$(PY)" benchmarks/run.py $(BENCH_ARGS)

clean: ## remove caches and builds; keeps .venv and runs/
	@rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "Removed caches and builds; runs/ and .venv stay (make distclean removes .venv too)."

distclean: clean ## also remove .venv
	@rm -rf "$(VENV)"

setup: ## only set up the environment for work on the code
	$(call install,dev)

setup-run:
	$(call install,run)

setup-docs:
	$(call install,docs)
