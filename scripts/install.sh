#!/usr/bin/env bash
# Installs through apt what scripts/probe.sh misses, when it may (root, or sudo without a password); otherwise prints the line that would.
#     scripts/install.sh run      what building, training and plotting need
#     scripts/install.sh test     what the tests need besides
# Exits 2 when something is missing that the level cannot do without. What is needed, and whether it is there, only the probe knows;
# libraries that came another way than through apt count as well.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
level=${1:-run}
case $level in run | test) ;; *) echo "usage: scripts/install.sh run|test" >&2; exit 2 ;; esac
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=""   # what apt said

# look: asks the probe. lacks: its lines; required, optional: packages to install, or once more where they are broken.
look() {
    lacks=$(scripts/probe.sh --missing "$level" 2> "$log") || { cat "$log" >&2; exit 2; }
    packages() { grep -E "^$1 " <<< "$lacks" | cut -d ' ' -f 3 | tr ',' '\n' | grep -v '^-$' | sort -u | tr '\n' ' ' | sed 's/ $//'; }
    required=$(packages 'required [a-z]+') optional=$(packages 'optional [a-z]+')
}

may_install() {
    [ -n "$required$optional" ] && command -v apt-get > /dev/null || return
    [ "$(id -u)" = 0 ] || sudo -n true 2> /dev/null
}

# The first sentence of what went wrong is kept; the rest of apt's words is of no use to a newcomer.
apt() {
    local root=()
    [ "$(id -u)" = 0 ] || root=(sudo -n)
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=1 "$@" < /dev/null > "$log" 2>&1 &&
        ! grep -q '^W: Failed to fetch' "$log" && return
    [ -n "$failed" ] || failed="apt-get $1 failed: $(grep -m 1 -E '^(E|W): ' "$log" || tail -n 1 "$log")"
    return 1
}

# All at once; where a release does not have one of them, that one must not keep anybody from the others.
# shellcheck disable=SC2086  # lists of words
install() {
    local package updated=yes
    echo "installing:" $required $optional
    apt update || updated=no   # an older list of packages may still do
    if ! apt install -y --reinstall --no-install-recommends $required $optional && [ $updated = yes ]; then
        [ -z "$required" ] || apt install -y --reinstall --no-install-recommends $required
        for package in $optional; do apt install -y --reinstall --no-install-recommends "$package"; done
    fi
    look
    [ -z "$required$optional" ] || [ -n "$failed" ] || \
        failed="apt-get installed ${required:+$required }$optional, and it is as missing or broken as before"
}

# What to type, as root or behind sudo.
print_lines() {
    local all="$required${required:+ }$optional"
    [ -n "$all" ] || return
    if ! command -v apt-get > /dev/null; then
        echo "there is no apt-get here; these are Debian's names, and scripts/environment.yml has conda's:  $all"
        return
    fi
    echo "as root, this installs what is missing (then the same command again):"
    echo "    apt-get update && apt-get install -y --reinstall --no-install-recommends $all"
}

look
[ "$level" = test ] || cat "$log" >&2
if may_install; then install; fi
[ -n "$lacks" ] || exit 0
{
    [ -z "$failed" ] || echo "$failed"
    sed -nE 's/^[a-z]+ broken [^ ]+ //p' <<< "$lacks"
    if [ -n "$required" ]; then echo "cannot go on without $required"
    elif ! grep -q '^required ' <<< "$lacks"; then sed -n 's/^optional missing [^ ]* /going on without /p' <<< "$lacks"; fi
    print_lines
} >&2
! grep -q '^required ' <<< "$lacks" || exit 2
