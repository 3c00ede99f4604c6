#!/usr/bin/env bash
# Installs what the tests need on a bare Debian 12, as root, and leaves no service running.
#   tests/setup.sh        everything `make test` needs
#   tests/setup.sh demo   just what `make demo` needs
#   tests/setup.sh full   also what `make full` needs
# Running it again costs a second.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-test}

say() { printf 'setup: %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || die "needs root: namespaces, addresses and raw sockets (try: sudo -E make ${what})"

packages="iproute2 nftables haproxy gcc libc6-dev make ca-certificates"
case "$what" in
  demo) ;;
  test|full) packages="$packages keepalived frr conntrack tcpdump iputils-arping iputils-ping procps" ;;
  *) die "unknown argument '$what'; accepted: nothing, demo, full" ;;
esac

missing=""
for p in $packages; do
  [ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$p" 2>/dev/null)" = "ii " ] || missing="$missing $p"
done
if [ -n "$missing" ]; then
  command -v apt-get >/dev/null || die "apt-get not found; install by hand:$missing"
  say "installing$missing"
  # A package's own service must not start here: the tests start what they need in their namespaces.
  policy=/usr/sbin/policy-rc.d
  made_policy=no
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' > "$policy"
    chmod 755 "$policy"
    made_policy=yes
  fi
  trap '[ "$made_policy" = no ] || rm -f "$policy"' EXIT
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q >/dev/null || die "apt-get update failed"
  # shellcheck disable=SC2086
  apt-get install -y -q --no-install-recommends $missing >/dev/null || die "could not install:$missing"
  # What came with its own service doesn't start at the next boot either.
  for service in haproxy keepalived frr; do
    case " $missing " in *" $service "*) ;; *) continue ;; esac
    if command -v systemctl >/dev/null; then systemctl disable -q "$service" >/dev/null 2>&1 || true; fi
    if command -v update-rc.d >/dev/null; then update-rc.d "$service" disable >/dev/null 2>&1 || true; fi
  done
fi

id holdfast >/dev/null 2>&1 || {
  say "creating the system user 'holdfast'"
  useradd --system --no-create-home --shell /usr/sbin/nologin holdfast
}

need=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
have=$(cargo --version 2>/dev/null | awk '{print $2}') || true
if [ -z "${have:-}" ] || [ "$(printf '%s\n%s\n' "$need" "$have" | sort -V | head -n 1)" != "$need" ]; then
  die "cargo $need or newer is needed, found '${have:-none}'. Debian's own is too old: install rustup
       (https://rustup.rs, or 'apt-get install rustup' on Debian 13), then 'rustup toolchain install $need',
       and run this again."
fi

say "ready ($what)"
