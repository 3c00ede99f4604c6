#!/usr/bin/env bash
# House rules that clippy can't hold: the crate graph, the purity of the pure crates, file length, unsafe, words.
set -euo pipefail
cd "$(dirname "$0")/.."
bad=0
fail() { printf 'lint: %s\n' "$*" >&2; bad=1; }

# 1. The crate graph is tests/deps.txt.
members=$(grep -v '^#' tests/deps.txt | cut -d: -f1)
for m in $members; do
  want=$(sed -n "s/^$m: *//p" tests/deps.txt | tr ' ' '\n' | sort | xargs)
  have=$(cargo tree --locked -q -p "$m" --depth 1 -e normal --prefix none --format '{p}' \
    | awk 'NR>1 && $1 ~ /^holdfast/ {print $1}' | sort -u | xargs)
  [ "$want" = "$have" ] || fail "tests/deps.txt: $m may depend on '$want', but depends on '$have'"
done
for m in $(cargo tree --locked -q --workspace --depth 0 --prefix none --format '{p}' | awk '$1 ~ /^holdfast/ {print $1}' | sort -u); do
  grep -q "^$m:" tests/deps.txt || fail "tests/deps.txt: $m is not listed"
done

# 2. The pure crates bring no I/O, clock or operating system in.
for m in holdfast-vrrp holdfast-bgp holdfast-bfd holdfast-statesync holdfast-node; do
  impure=$(cargo tree --locked -q -p "$m" -e normal --prefix none --format '{p}' \
    | awk '{print $1}' | sort -u | grep -E '^(tokio|mio|socket2|nix|rustix|libc|getrandom|rtnetlink|pnet|pnet_datalink|tracing)$' | xargs || true)
  [ -z "$impure" ] || fail "$m is pure but depends on: $impure"
done

# 3. unsafe lives in agent::os only.
found=$(git ls-files '*.rs' | grep -v '^agent/src/os/' | xargs grep -lE '\bunsafe (\{|fn|impl)' || true)
[ -z "$found" ] || fail "unsafe outside agent/src/os: $(echo "$found" | xargs)"

# 4. Files stay readable: over 700 lines is an error, 600 is the aim.
while read -r lines file; do
  [ "$file" = total ] || [ "$lines" -le 700 ] || fail "$file has $lines lines: split it (aim: 600)"
done < <(git ls-files '*.rs' | xargs wc -l | awk '{print $1, $2}')

# 5. Top-level folders are the house's rooms.
for d in $(git ls-tree -d --name-only HEAD | grep -v '^\.'); do
  case "$d" in agent|vrrp|bgp|statesync|tests|vagrant) ;; *) fail "top-level folder '$d' is not part of the house" ;; esac
done

# 6. Shell scripts parse.
for s in tests/*.sh .ci/run; do bash -n "$s" || fail "$s does not parse"; done

[ "$bad" = 0 ] && echo "lint: house rules hold"
exit "$bad"
