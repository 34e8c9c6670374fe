#!/usr/bin/env bash
# Finds out what this machine's compiler and libraries can do, by compiling, linking and running programs of a few lines.
#     scripts/probe.sh build/config.mk      (the Makefile does this once; `make configure` repeats it)
# Writes the answers as make variables and reports them on stderr. Exits 1, leaving no file, when something required is missing.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
output=${1:?usage: scripts/probe.sh FILE}
cxx=${CXX:-g++}
arch=${ARCH--march=native}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
missing=()   # Debian packages of what is required and was not found

report() { printf '  %-16s %s\n' "$1" "$2" >&2; }

# Compiles, links and runs the program on stdin with the given flags; libraries go last, as in a link line.
works() {
    cat > "$work/probe.cpp"
    # shellcheck disable=SC2086  # CXX may hold flags
    $cxx -std=c++20 "$work/probe.cpp" -o "$work/probe" "$@" > "$work/log" 2>&1 && "$work/probe" > "$work/answer" 2>> "$work/log"
}

# require NAME PACKAGE FOUND: reports a required library.
require() {
    if [ "$3" = yes ]; then report "$1" found; else report "$1" "MISSING ($2)"; missing+=("$2"); fi
}

probe_compiler() {
    if ! works -fopenmp <<< '#include <span>
        #include <omp.h>
        int main() { int x[2] = {1, 2}; std::span<int> s(x); return s.size() == 2 && omp_get_max_threads() > 0 ? 0 : 1; }'; then
        report "$cxx" "MISSING, or without C++20 or OpenMP (g++ 11 or later is enough)"
        missing+=(g++)
        return
    fi
    report "$cxx" "$($cxx --version | head -n 1)"
}

# Keeps the flags that the compiler takes and whose code this processor runs: some emulators offer less than they announce.
probe_arch() {
    local accepted="" flag program='int main(int n, char**) { float x[64]; for (int i = 0; i < 64; ++i) x[i] = i * n;
        float sum = 0; for (float v : x) sum += v * v; return sum > 0 ? 0 : 1; }'
    for flag in $arch -mprefer-vector-width=512; do
        # shellcheck disable=SC2086
        if works -O3 -ffast-math $accepted "$flag" <<< "$program"; then accepted="$accepted $flag"; fi
    done
    arch=${accepted# }
    report architecture "${arch:-plain}"
}

# The OpenMP flavour first: it shares its threads with ours. Debian keeps the flavours in folders of their own and the system-wide
# library may be another one, hence the run path.
probe_openblas() {
    local folder program='#include <cblas.h>
        #include <cstdio>
        extern "C" int openblas_get_parallel(void);
        int main() {
            float a[4] = {1, 2, 3, 4}, c[4];
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, 2, 2, 2, 1, a, 2, a, 2, 0, c, 2);
            std::puts(openblas_get_parallel() == 2 ? "OpenMP" : openblas_get_parallel() == 1 ? "pthread" : "one thread");
            return c[3] == 25 ? 0 : 1;
        }'
    blas_flags="" blas_libs=""
    for folder in /usr/lib/*/openblas-openmp; do
        [ -d "$folder" ] || continue
        blas_flags="-isystem /usr/include/$(basename "$(dirname "$folder")")/openblas-openmp"
        blas_libs="-L$folder -Wl,-rpath,$folder -lopenblas"
        # shellcheck disable=SC2086
        works $blas_flags $blas_libs <<< "$program" && report OpenBLAS "found ($(cat "$work/answer"), $folder)" && return
    done
    if command -v pkg-config > /dev/null && pkg-config --exists openblas; then
        blas_flags=$(pkg-config --cflags openblas) blas_libs=$(pkg-config --libs openblas)
        # shellcheck disable=SC2086
        works $blas_flags $blas_libs <<< "$program" && report OpenBLAS "found ($(cat "$work/answer"), pkg-config)" && return
    fi
    blas_flags="" blas_libs="-lopenblas"
    works -lopenblas <<< "$program" && report OpenBLAS "found ($(cat "$work/answer"))" && return
    blas_flags="-I/usr/include/openblas"
    works "$blas_flags" -lopenblas <<< "$program" && report OpenBLAS "found ($(cat "$work/answer"))" && return
    require OpenBLAS libopenblas-openmp-dev no
}

probe_headers() {
    local found
    found=no; works <<< '#include <CLI/CLI.hpp>
        int main() { CLI::App app; return 0; }' && found=yes
    require CLI11 libcli11-dev "$found"
    found=no; works <<< '#include <nlohmann/json.hpp>
        int main() { return nlohmann::json::parse("[7]")[0] == 7 ? 0 : 1; }' && found=yes
    require nlohmann-json nlohmann-json3-dev "$found"
    found=no; works <<< '#define XXH_INLINE_ALL
        #include <xxhash.h>
        int main() { return XXH3_64bits("", 0) != 0 ? 0 : 1; }' && found=yes
    require xxhash libxxhash-dev "$found"
}

# Only the tests need Catch2: version 3 brings a library with main(), version 2 is one header.
probe_catch2() {
    catch_libs="" have_catch=0
    if works -lCatch2Main -lCatch2 <<< '#include <catch2/catch_all.hpp>
        TEST_CASE("probe") { CHECK(true); }'; then
        catch_libs="-lCatch2Main -lCatch2" have_catch=1
        report Catch2 "found (version 3)"
    elif $cxx -std=c++20 -x c++ -E - <<< '#include <catch2/catch.hpp>' > "$work/log" 2>&1; then
        have_catch=1
        report Catch2 "found (version 2)"
    else
        report Catch2 "not found: the tests cannot be built (catch2)"
    fi
}

# Optional: without it ./train_VARIANT is one process.
probe_mpi() {
    local program='#include <mpi.h>
        int main() { int flag; return MPI_Initialized(&flag); }'
    have_mpi=0 mpi_flags="" mpi_libs=-lmpi
    if command -v mpicxx > /dev/null; then   # Open MPI answers --showme, MPICH -compile_info
        mpi_flags=$( (mpicxx --showme:incdirs || mpicxx -compile_info | grep -o -- '-I[^ ]*' | sed 's/^-I//') 2> /dev/null \
            | tr ' ' '\n' | sed -n 's/^\/.*/-isystem &/p' | tr '\n' ' ')
        mpi_libs="$( (mpicxx --showme:libdirs || mpicxx -link_info | grep -o -- '-L[^ ]*' | sed 's/^-L//') 2> /dev/null \
            | tr ' ' '\n' | sed -n 's/^\/.*/-L& -Wl,-rpath,&/p' | tr '\n' ' ')-lmpi"
    fi
    mpi_flags="$mpi_flags-DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX"   # the C interface alone
    # shellcheck disable=SC2086
    if works $mpi_flags $mpi_libs <<< "$program"; then
        have_mpi=1
        report MPI "found ($(mpirun --version 2> /dev/null | head -n 1))"
    else
        report MPI "not found: one process per run (openmpi-bin libopenmpi-dev)"
    fi
}

probe_nvcc() {
    nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2> /dev/null || true)
    if [ -n "$nvcc" ]; then
        report nvcc "found ($("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p'), $nvcc)"
    else
        report nvcc "not found"
    fi
}

echo "what this machine has:" >&2
probe_compiler
[ ${#missing[@]} -eq 0 ] && probe_arch
probe_openblas
probe_headers
probe_catch2
probe_mpi
probe_nvcc
if [ ${#missing[@]} -gt 0 ]; then
    echo "to install what is missing:  sudo apt-get install ${missing[*]}" >&2
    exit 1
fi
mkdir -p "$(dirname "$output")"
cat > "$output" <<END
# Written by scripts/probe.sh; \`make configure\` writes it anew.
ARCH := $arch
BLAS_CXXFLAGS := $blas_flags
BLAS_LIBS := $blas_libs
HAVE_CATCH2 := $have_catch
CATCH2_LIBS := $catch_libs
HAVE_MPI := $have_mpi
MPI_CXXFLAGS := $mpi_flags
MPI_LIBS := $mpi_libs
NVCC := $nvcc
END
