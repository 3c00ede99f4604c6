#!/usr/bin/env bash
# Runs the test binaries: with nextest where it is installed, else with cargo test.
#   tests/unit.sh         all but the drills
#   tests/unit.sh quick   pure crates and the agent's own unit tests
#   tests/unit.sh full    all, with the long cases (HOLDFAST_CASES) and the mutants
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-ci}
pure="-p holdfast-vrrp -p holdfast-bgp -p holdfast-bfd -p holdfast-statesync -p holdfast-node"

run() {
  if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --locked --no-fail-fast --no-tests pass "$@"
  else
    cargo test --locked --no-fail-fast "$@"
  fi
}

# The simulator's tests with so many seeds, optimised: `[profile.sim]` in Cargo.toml.
simulator() {
  export HOLDFAST_SEEDS=$1
  shift
  if cargo nextest --version >/dev/null 2>&1; then
    run --cargo-profile sim -p holdfast-sim "$@"
  else
    run --profile sim -p holdfast-sim "$@"
  fi
}

# Ten million mutated BGP messages, optimised as the simulator is.
mutations() {
  local profile=--profile
  if cargo nextest --version >/dev/null 2>&1; then profile=--cargo-profile; fi
  HOLDFAST_MUTATIONS=${HOLDFAST_MUTATIONS:-10000000} run $profile sim -p holdfast-bgp --test wire no_mutated_message
}

# What a BFD session costs beside BIRD's, optimised: the everyday build says nothing about that.
session_cost() {
  local profile=--profile
  if cargo nextest --version >/dev/null 2>&1; then profile=--cargo-profile; fi
  cargo build --locked --profile demo -p holdfast --example keeper_pair
  run $profile demo -p holdfast --test keeper_bfd a_packet_costs_one_wake_up
}

# Other people's BGP decoders against ours: a workspace of its own (tests/oracles).
oracles() {
  CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target}/oracles run --manifest-path tests/oracles/Cargo.toml
}

# All but the pure crates and the simulator, which have runs of their own. The tests of the interop package run the agent
# that is built with them (the agent's own tests need it too): never an older build that happens to lie around.
rest() {
  HOLDFAST_BIN=${CARGO_TARGET_DIR:-$PWD/target}/debug/holdfast
  export HOLDFAST_BIN
  run --workspace --exclude holdfast-sim ${pure//-p /--exclude }
}

case "$what" in
  quick) run $pure -p holdfast-sim -p holdfast --lib ;;
  ci)
    rest
    simulator 2000
    ;;
  full)
    export HOLDFAST_CASES=${HOLDFAST_CASES:-20}
    export HOLDFAST_BUSY_SECONDS=${HOLDFAST_BUSY_SECONDS:-600} # eight busy loops beside a BFD session
    rest
    simulator 500 # times HOLDFAST_CASES
    mutations
    session_cost
    oracles
    ;;
  *) echo "unknown argument '$what'; accepted: nothing, quick, full" >&2; exit 4 ;;
esac

# The pure crates, once: with the feature that adds the tests in which each guard is switched off by name and its check
# must then fail. No guard is off in any other test.
if [ "$what" != quick ]; then
  run $pure --features holdfast-vrrp/mutants,holdfast-bgp/mutants,holdfast-statesync/mutants,holdfast-node/mutants
  run -p holdfast-sim --features holdfast-sim/mutants --test mutants
fi
