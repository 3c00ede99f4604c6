# Two commands matter: `make demo` and `make test`. `make help` lists the rest.
SHELL := /bin/bash
CARGO ?= cargo
# One profile for every binary that runs in a drill: optimised enough to be honest, quick to build on two cores.
DRILL_PROFILE := demo
BIN := target/$(DRILL_PROFILE)
PIECE ?= all

.PHONY: help demo test quick full bench scale fmt lint deny setup binaries unit drills balance

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | sort

setup: ## install what tests need (Debian 12, root)
	tests/setup.sh

binaries: ## the agent and the drill programs, as drills run them
	$(CARGO) build --locked --profile $(DRILL_PROFILE) -p holdfast -p holdfast-lab -p holdfast-sim -p holdfast-interop -p holdfast-bench

demo: ## a pair in namespaces: the balancer is killed, the address moves, the client's view is printed
	tests/setup.sh demo
	$(CARGO) build --locked --profile $(DRILL_PROFILE) -p holdfast -p holdfast-lab
	$(BIN)/holdfast-drill demo

test: ## the CI tier of all tests: sets up, lints, unit tests, then drills
	tests/setup.sh
	$(MAKE) --no-print-directory lint
	$(MAKE) --no-print-directory unit
	$(MAKE) --no-print-directory binaries
	$(MAKE) --no-print-directory drills

unit: ## unit, property, simulator and namespace tests
	tests/unit.sh

drills: ## the CI tier's drills (tests/tiers.toml)
	$(BIN)/holdfast-drill tier ci --tiers tests/tiers.toml

quick: ## the inner loop: pure crates and fast tests only, under two minutes when warm
	tests/unit.sh quick

full: ## the issues' own counts and figures, into tests/results/; one piece: make full PIECE=balancer-killed
	tests/setup.sh full
	$(MAKE) --no-print-directory binaries deny
	tests/unit.sh full
	$(BIN)/holdfast-drill tier full --tiers tests/tiers.toml --piece $(PIECE) --results tests/results

bench: ## benchmarks, alone and beside conntrackd; on a quiet machine
	$(BIN)/holdfast-drill tier bench --tiers tests/tiers.toml --results tests/results

scale: ## 1 to 1,000 virtual routers, 500 addresses, a flapping trunk, beside keepalived; on a quiet machine
	$(MAKE) --no-print-directory binaries
	$(BIN)/holdfast-drill scale --results tests/results

balance: ## what the embedded balancer and checks cost: loads, changes, forwarding beside nft by hand; root, quiet machine
	HOLDFAST_RESULTS=$(CURDIR)/tests/results $(CARGO) test --locked --profile $(DRILL_PROFILE) -p holdfast --no-fail-fast \
		--test pool --test probes -- --ignored --nocapture --test-threads=1

fmt: ## format the tree
	$(CARGO) fmt --all

lint: ## formatting, clippy, the crate graph, the house rules
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	tests/lint.sh

deny: ## licences, bans and sources of dependencies
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny --locked check licenses bans sources; \
	else echo "deny: cargo-deny is not installed ('cargo install --locked cargo-deny'); skipped"; fi
