#!/usr/bin/env bash
# Installs through apt what this machine lacks, when it may (root, or sudo without a password); otherwise prints the line that would.
#     scripts/install.sh run      what building, training and plotting need
#     scripts/install.sh test     what the tests need besides
# Exits 2 when something is missing that the level cannot do without. Looks for the things themselves, not for Debian packages,
# so that libraries from elsewhere count.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
level=${1:-run}
case $level in run | test) ;; *) echo "usage: scripts/install.sh run|test" >&2; exit 2 ;; esac

has_program() { command -v "$1" > /dev/null; }
has_header() { echo "#if !__has_include(<$1>)
    #error missing
    #endif" | ${CXX:-g++} -E -x c++ - > /dev/null 2>&1; }
has_openblas() { has_header cblas.h || has_header openblas/cblas.h || compgen -G '/usr/include/*/openblas-openmp/cblas.h' > /dev/null; }
# Under another python3 in front of the system's, scripts/plot_loss.py turns to the system's by itself.
has_matplotlib() {
    local find='import importlib.util, sys; sys.exit(importlib.util.find_spec("matplotlib") is None)'
    python3 -c "$find" 2> /dev/null || /usr/bin/python3 -c "$find" 2> /dev/null
}

# Fills `required` and `optional` with the names of the packages that are missing.
find_missing() {
    required=() optional=()
    has_program "${CXX:-g++}" || required+=(g++)
    has_program make || required+=(make)
    has_program python3 || required+=(python3)
    has_openblas || required+=(libopenblas-openmp-dev)
    has_header zlib.h || required+=(zlib1g-dev)
    has_header archive.h || required+=(libarchive-dev)
    has_header CLI/CLI.hpp || required+=(libcli11-dev)
    has_header nlohmann/json.hpp || required+=(nlohmann-json3-dev)
    has_header xxhash.h || required+=(libxxhash-dev)
    has_header pcre2.h || required+=(libpcre2-dev)
    has_header utf8proc.h || required+=(libutf8proc-dev)
    has_matplotlib || optional+=(python3-matplotlib)
    [ "$level" = test ] || return 0
    has_header catch2/catch.hpp || has_header catch2/catch_all.hpp || required+=(catch2)
    has_program mpirun && has_program mpicxx || optional+=(openmpi-bin libopenmpi-dev)
    python3 -c 'import ensurepip, venv' 2> /dev/null || optional+=(python3-venv)
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# Prints what apt says only when it fails.
apt() {
    local log
    log=$(mktemp)
    if ! as_root env DEBIAN_FRONTEND=noninteractive apt-get "$@" < /dev/null > "$log" 2>&1; then
        echo "apt-get $* failed:" >&2
        tail -n 8 "$log" >&2
    fi
    rm -f "$log"
}

find_missing
missing=("${required[@]}" "${optional[@]}")
[ ${#missing[@]} -eq 0 ] && exit 0

line="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
if has_program apt-get && as_root true 2> /dev/null; then
    echo "installing: ${missing[*]}"
    apt update -qq
    apt install -y --no-install-recommends "${missing[@]}"
    rm -f build/config.mk   # the Makefile looks again
    find_missing
fi

if [ ${#required[@]} -eq 0 ]; then
    [ ${#optional[@]} -eq 0 ] || echo "going on without ${optional[*]}; as root, this line installs it:  $line" >&2
    exit 0
fi
echo "missing: ${required[*]}" >&2
if has_program apt-get; then
    echo "as root, this line installs everything:  $line" >&2
else
    echo "these are the names of Debian's packages; install the same libraries the way this system does" >&2
fi
exit 2
