# run, run-replay, demo-outage, flink, test, test-phoenix, kills, kills-flink, bench, bench-stores, bench-scaling, outages, lint, proto. Each installs the project into .venv first; a second call installs nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ROWS ?= 20000
# Of run-replay: how fast, and when an aircraft expires.
SPEED ?= 14400
TTL ?= 6h

.PHONY: run run-replay demo-outage flink test test-phoenix kills kills-flink bench bench-stores bench-scaling outages lint proto docs clean

# `pip install --group` needs pip 25.1.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Python 3.11 or later is needed; {sys.executable} is {v[0]}.{v[1]}. Name one: make PYTHON=python3.12 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all]' --group dev
	touch $@

run: $(STAMP)
	$(BIN)/python -m beam_agents.demo --rows $(ROWS)

# The runner is built at the first call, with Go.
run-replay: $(STAMP)
	prism=$$($(BIN)/python -m tests.servers.prism) && $(BIN)/python -m beam_agents.demo --out run/replay \
		--rows $(ROWS) --replay-speed $(SPEED) --ttl $(TTL) -- --prism_location=$$prism

# Needs redis-server, prometheus and prometheus-alertmanager, and for pictures chromium: .ci/install-servers.
demo-outage: $(STAMP)
	$(BIN)/python -m beam_agents.demo.outage --out run/outage

# Needs Java, and Maven at the first call, which loads half a gigabyte: .ci/install-servers.
flink: $(STAMP)
	.ci/install-flink
	$(BIN)/python -m tests.servers.flink

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/python -m pytest --numprocesses auto --dist loadgroup

# Arize Phoenix wants versions of its own, and 850 MB.
$(VENV)/phoenix/.installed: $(STAMP)
	$(PYTHON) -m venv $(VENV)/phoenix
	$(VENV)/phoenix/bin/python -m pip install --quiet 'arize-phoenix>=20,<21'
	touch $@

test-phoenix: $(VENV)/phoenix/.installed
	BEAM_AGENTS_PHOENIX=$(VENV)/phoenix/bin/phoenix $(BIN)/python -m pytest tests/telemetry/test_phoenix.py

# Takes a quarter of an hour for each store; needs redis-server, PostgreSQL and Prism: .ci/install-servers.
kills: $(STAMP)
	$(BIN)/python -m tests.runners.kills --store redis
	$(BIN)/python -m tests.runners.kills --store postgresql

# Takes a quarter of an hour for each store; needs Flink besides: .ci/install-servers.
kills-flink: $(STAMP)
	$(BIN)/python -m tests.runners.flink_kills --store redis
	$(BIN)/python -m tests.runners.flink_kills --store postgresql

bench: $(STAMP)
	$(BIN)/python -m tests.benchmarks --quiet --json run/bench.json

bench-stores: $(STAMP)
	$(BIN)/python -m tests.benchmarks.stores --json run/bench-stores.json

# Needs redis-server, and Go for the runner.
outages: $(STAMP)
	$(BIN)/python -m tests.benchmarks.outages --json run/outages.json

# Needs redis-server, Go to build Prism with, and Flink: .ci/install-servers.
bench-scaling: $(STAMP)
	$(BIN)/python -m tests.benchmarks.scaling --json run/bench-scaling.json
	$(BIN)/python -m tests.benchmarks.scaling --runner flink --json run/bench-scaling-flink.json

# protoc 21 writes modules that import on protobuf 3.20.3 to 6, and needs an environment of its own: its
# package wants an older protobuf than Beam's.
$(VENV)/proto/.installed: $(STAMP)
	$(PYTHON) -m venv $(VENV)/proto
	$(VENV)/proto/bin/python -m pip install --quiet 'grpcio-tools==1.49.1' 'setuptools<80'
	touch $@

proto: $(VENV)/proto/.installed
	$(VENV)/proto/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. beam_agents/wire/beam_agents.proto

clean:
	rm -rf $(VENV) run build dist
