#!/usr/bin/env bash
# The first command on machines of every kind: what scripts/probe.sh finds missing or broken, what scripts/install.sh does about it, and
# what stands in for libraries that are not there. The machines are made up of a compiler, an apt-get and a python3 that only pretend,
# so that nothing is installed and no network is asked. Prints a line `ok NAME` or `FAIL NAME: why` for each.
# shellcheck disable=SC2016  # the checks are expressions that checks.bash evaluates
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. tests/checks.bash
tree=$work/tree machine=$work/machine
mkdir -p "$tree/build" "$machine"
cp -r scripts "$tree"

# pretend NAME: a program of the made-up machine, from stdin.
pretend() { { echo '#!/usr/bin/env bash'; cat; } > "$machine/$1" && chmod +x "$machine/$1"; }

# Compiles everything to a program that succeeds, but what includes a header named in the file `lacking`, or in `broken`: that one is
# there and its library is not. An old compiler takes no C++20.
pretend g++ << 'END'
here=$(dirname "$0")
has() { grep -qsF -f "$here/$1" <<< "$source"; }
case " $* " in *" --version "*) echo "g++ (pretended) $(cat "$here/version")"; exit ;; esac
[ "$(cat "$here/version")" != 9 ] || { echo "g++: error: unrecognized command line option '-std=c++20'" >&2; exit 1; }
while [ $# -gt 0 ]; do
    case $1 in -E) source=$(cat) ;; -o) out=$2 ;; *.cpp) source=$(cat "$1") ;; esac
    shift
done
has lacking && { echo "probe.cpp:1:10: fatal error: no such header" >&2; exit 1; }
[ -n "${out:-}" ] || exit 0
has broken && { echo "ld: cannot find -lpretended" >&2; exit 1; }
printf '#!/bin/sh\n' > "$out" && chmod +x "$out"
END
pretend id <<< 'cat "$(dirname "$0")/user"'
pretend sudo <<< 'exit 1'
pretend python3 <<< 'exit 0'
pretend pkg-config <<< 'exit 1'
# Does what the first line of `network` says, and keeps its arguments.
pretend apt-get << 'END'
here=$(dirname "$0")
echo "$*" >> "$here/asked"
[ "$(cat "$here/network")" = up ] || { echo "W: Failed to fetch the list  Temporary failure resolving 'packages'"; exit 100; }
case " $* " in *" --reinstall "*) : > "$here/broken" ;; *" install "*) : > "$here/lacking" ;; esac
END

# made_up KEY VALUE...: a machine that has everything, for an ordinary user, but for what the keys say.
made_up() {
    rm -f "$machine"/{lacking,broken,asked}
    touch "$machine"/{lacking,broken,asked}
    echo 12 > "$machine/version"; echo 1000 > "$machine/user"; echo up > "$machine/network"
    while [ $# -gt 0 ]; do echo "$2" > "$machine/$1"; shift 2; done
}
on_it=(env -u CXX -u CPPFLAGS -u LDFLAGS "PATH=$machine:$PATH")
installs=("${on_it[@]}" "$tree/scripts/install.sh")
probes=("${on_it[@]}" "$tree/scripts/probe.sh")
says() { grep -qF -- "$1" "$work/stderr"; }

made_up
expect "install.sh: a machine that has everything needs nothing" 0 "" "${installs[@]}" test
check "install.sh: nor is apt-get asked" '[ ! -s "$machine/asked" ] && [ ! -s "$work/stderr" ]'
expect "install.sh: another level is refused" 2 "usage:" "${installs[@]}" everything
expect "probe.sh: another word is refused" 2 "usage:" "${probes[@]}" --missing

made_up lacking CLI/CLI.hpp
expect "install.sh: an ordinary user gets the line to run" 2 \
    "    apt-get update && apt-get install -y --no-install-recommends libcli11-dev" "${installs[@]}" run
check "install.sh: and reads what is missing" 'says "cannot go on without libcli11-dev"'

made_up lacking CLI/CLI.hpp user 0
expect "install.sh: root gets the package installed" 0 "" "${installs[@]}" run
check "install.sh: that one alone" 'grep -q "no-install-recommends libcli11-dev$" "$machine/asked"'

made_up lacking CLI/CLI.hpp user 0 network down
expect "install.sh: without a network the first thing that apt-get said, and the line" 2 "Temporary failure resolving" "${installs[@]}" run
check "install.sh: in four lines" '[ "$(wc -l < "$work/stderr")" -eq 4 ] && says "apt-get install -y --no-install-recommends libcli11-dev"'

made_up lacking pcre2.h
expect "install.sh: what is optional stops nobody" 0 "going on without PCRE2: no text to the ids of a tokenizer.json" "${installs[@]}" run
expect "install.sh: but the tests" 2 "cannot go on without libpcre2-dev" "${installs[@]}" test

# The reference BLAS has a cblas.h too; only OpenBLAS has an openblas_config.h.
made_up lacking openblas_config.h broken cblas.h
expect "install.sh: the reference BLAS is not taken for OpenBLAS" 0 "libopenblas-openmp-dev" "${installs[@]}" run
made_up broken cblas.h
expect "install.sh: OpenBLAS's headers without its library are reported" 0 "ld: cannot find -lpretended" "${installs[@]}" run
check "install.sh: with the line that brings the library back" 'says "--reinstall libopenblas-openmp-dev"'
made_up broken nlohmann/json.hpp user 0
expect "install.sh: root gets a broken package again" 0 "" "${installs[@]}" run

made_up version 9
expect "install.sh: a compiler that is too old is named, with what it said" 2 "g++ (pretended) 9 is too old" "${installs[@]}" run
check "install.sh: and nothing is to be installed for it" '! says "apt-get"'
expect "install.sh: a compiler that is not there is named" 2 "there is no no-such-compiler, which CXX names" \
    "${on_it[@]}" CXX=no-such-compiler "$tree/scripts/install.sh" run
check "install.sh: and nothing is to be installed for that either" '! says "apt-get"'

made_up
expect "probe.sh writes its file" 0 "" "${probes[@]}" "$tree/build/config.mk"
check "probe.sh: with OpenBLAS and without stand-ins" \
    'grep -qx "BLAS_SOURCE := model/device/blas/openblas.cpp" "$tree/build/config.mk" && grep -qx "WITHOUT :=" "$tree/build/config.mk"'
cp "$tree/build/config.mk" "$work/before"
pretend mv <<< 'kill -9 $PPID'   # between writing and renaming
made_up lacking pcre2.h
{ "${probes[@]}" "$tree/build/config.mk"; } 2> /dev/null
rm "$machine/mv"
check "probe.sh: killed while it writes it leaves the file of before" 'cmp -s "$tree/build/config.mk" "$work/before"'
pretend mktemp << 'END'
case $* in *config.mk*) ln -sfn /dev/full "${@: -1}" && echo "${@: -1}" ;; *) exec /usr/bin/mktemp "$@" ;; esac
END
expect "probe.sh: a full disk is reported" 1 "cannot be written" "${probes[@]}" "$tree/build/config.mk"
rm "$machine/mktemp"
check "probe.sh: and leaves the file of before" 'cmp -s "$tree/build/config.mk" "$work/before"'
printf '%s\n' pcre2.h utf8proc.h archive.h zlib.h cblas.h openblas_config.h > "$machine/lacking"
expect "probe.sh: a machine without the libraries of text and without a BLAS will do" 0 "" "${probes[@]}" "$tree/build/config.mk"
check "probe.sh: a source stands in for each" 'grep -qx "WITHOUT := pretokenizer nfc archive_stream gzip_stream" "$tree/build/config.mk" &&
    grep -qx "TEXT_LIBS :=" "$tree/build/config.mk" && grep -qx "BLAS_SOURCE := model/device/blas/loops.cpp" "$tree/build/config.mk"'
made_up lacking xxhash.h
expect "probe.sh: something required is missing" 1 "scripts/install.sh run" "${probes[@]}" "$tree/build/config.mk"
check "probe.sh: then there is no file" '[ ! -e "$tree/build/config.mk" ]'

# ---- what stands in, by the real compiler
for source in data/without/*.cpp; do
    replaced=$(find data -name "$(basename "$source")" -not -path 'data/without/*')
    check "$source compiles in the place of ${replaced:-a source of the same name}" \
        '[ -n "$replaced" ] && ${CXX:-g++} -std=c++20 -Wall -Wextra -Werror -fsyntax-only -I. "$source"'
done

# Shapes around the sizes of the tiles; what was in c must not count where beta is 0.
cat > "$work/products.cpp" << 'END'
#include <cmath>
#include <vector>
#include "model/device/blas.h"
#include "model/device/machine.h"

template <class X>
bool right(int M, int N, int K, bool ta, bool tb, X alpha, X beta) {
    std::vector<X> a(M * K), b(K * N), c(M * (N + 3), beta == 0 ? X(NAN) : X(2));
    for (int i = 0; i < M * K; i++) a[i] = X(i % 7) - 3;
    for (int i = 0; i < K * N; i++) b[i] = X(i % 5) - 2;
    gemm(ta ? Transpose::yes : Transpose::no, tb ? Transpose::yes : Transpose::no, M, N, K, alpha, a.data(), ta ? M : K, b.data(),
         tb ? K : N, beta, c.data(), N + 3);
    bool all = true;
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            X sum = 0;   // of small whole numbers: exact
            for (int k = 0; k < K; k++) sum += a[ta ? k * M + m : m * K + k] * b[tb ? n * K + k : k * N + n];
            all = all && c[m * (N + 3) + n] == alpha * sum + beta * 2;
        }
    return all;
}
template <class X>
bool all_right() {
    bool all = true;
    for (int M : {1, 5, 64, 70})
        for (int N : {1, 63, 130})
            for (int K : {1, 17, 256, 300})
                for (int t = 0; t < 4; t++) all = all && right<X>(M, N, K, t & 1, t & 2, 2, t < 2 ? 0 : 3);
    return all;
}
int main() { return all_right<float>() && all_right<double>() ? 0 : 1; }
END
check "model/device/blas/loops.cpp multiplies exactly as the definition does" \
    '${CXX:-g++} -std=c++20 -O1 -fopenmp -I. "$work/products.cpp" model/device/blas/loops.cpp -o "$work/products" && "$work/products"'
