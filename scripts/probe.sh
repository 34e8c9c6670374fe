#!/usr/bin/env bash
# Finds out what this machine's compiler and libraries can do, by compiling, linking and running programs of a few lines.
#     scripts/probe.sh FILE                  writes the answers as make variables into FILE (the Makefile's build/config.mk).
#                                            Exits 1 and leaves no FILE when something required lacks.
#     scripts/probe.sh --missing run|test    prints what building and training (run), or the tests too (test), would still like to
#                                            have, as lines `required|optional missing|broken DEBIAN_PACKAGE[,...] NAME: why`;
#                                            the package is - where installing changes nothing
# Both report what they find on stderr. CXX, CPPFLAGS and LDFLAGS of the environment count, as they do for make.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
usage() { echo "usage: scripts/probe.sh FILE | scripts/probe.sh --missing run|test" >&2; exit 2; }
case "$#,${1:-},${2:-}" in
    1,-*) usage ;;
    1,*) output=$1 level=run ;;
    2,--missing,run | 2,--missing,test) output="" level=$2 ;;
    *) usage ;;
esac
export LC_ALL=C   # what compilers say is looked for in English
cxx=${CXX:-g++}
arch=${ARCH--march=native}
mkdir -p build && work=$(mktemp -d build/probe.XXXXXX) || exit   # programs do not run from every machine's /tmp
trap 'rm -rf "$work"' EXIT
of_tests=optional   # what programs do without, and tests do not
[ "$level" = run ] || of_tests=required
lacks=()     # the lines that --missing prints
problem=""   # why works() said no, and
linked=no    # whether the program could be built, at least

report() { printf '  %-16s %s\n' "$1" "$2" >&2; }

# lack KIND STATE PACKAGE NAME WHY
lack() {
    local found="not found"
    case $1,$2 in required,missing) found=MISSING ;; *,broken) found=BROKEN ;; esac
    report "$4" "$found: $5$([ "$3" = - ] || echo " ($3)")"
    lacks+=("$1 $2 $3 $4: $5")
}

# Compiles, links and runs the program on stdin with the given flags; libraries go last, as in a link line. With -E it is only
# preprocessed: compiling the headers of a library that has no binary takes seconds.
works() {
    linked=no
    cat > "$work/probe.cpp"
    # shellcheck disable=SC2086  # CXX and the flags may hold several words
    if [ "${1:-}" = -E ]; then
        $cxx -std=c++20 ${CPPFLAGS:-} -E "$work/probe.cpp" > /dev/null 2> "$work/log" && return
        problem=$(grep -m 1 -E 'error|cannot' "$work/log" || tail -n 1 "$work/log")
    elif $cxx -std=c++20 ${CPPFLAGS:-} "$work/probe.cpp" -o "$work/probe" ${LDFLAGS:-} "$@" > "$work/log" 2>&1; then
        linked=yes
        "$work/probe" > "$work/answer" 2> "$work/log" && return
        problem="it ends with status $?: $(tail -n 1 "$work/log")"
    else
        problem=$(grep -m 1 -iE 'error|undefined|cannot' "$work/log" || tail -n 1 "$work/log")
    fi
    problem=${problem//$work\//}
    return 1
}

has_header() {
    # shellcheck disable=SC2086
    $cxx -std=c++20 ${CPPFLAGS:-} -E -x c++ - > /dev/null 2>&1 <<< "#if !__has_include(<$1>)
        #error
        #endif"
}

# library NAME KIND PACKAGE HEADER WITHOUT FLAGS...: whether the program on stdin works with the library; WITHOUT says what cannot be
# done when it does not. A header without a library that works is not the same as nothing: installing it again may help, but
# not where a program can be built and does not run, for then the library is too old.
library() {
    local name=$1 kind=$2 package=$3 header=$4 without=$5
    shift 5
    if works "$@"; then report "$name" found; return; fi
    if has_header "$header"; then
        [ $linked = no ] || package=-
        lack "$kind" broken "$package" "$name" "$without; <$header> is there, but a program with it fails: $problem"
    else lack "$kind" missing "$package" "$name" "$without"; fi
    return 1
}

probe_compiler() {
    if ! command -v "${cxx%% *}" > /dev/null; then
        if [ -n "${CXX:-}" ]; then
            lack required broken - C++ "there is no ${cxx%% *}, which CXX names; unset it or name another compiler"
            return 1
        fi
        lack required missing g++ C++ "there is no $cxx, and nothing can be compiled"
        return
    fi
    if works -fopenmp <<< '#include <span>
        #include <omp.h>
        int main() { int x[2] = {1, 2}; std::span<int> s(x); return s.size() == 2 && omp_get_max_threads() > 0 ? 0 : 1; }'; then
        report "$cxx" "$($cxx --version | head -n 1)"
        return
    fi
    lack required broken - C++ "$($cxx --version 2>&1 | head -n 1) is too old, or lacks C++20, OpenMP or its own library; g++ 11 or later \
is enough, and CXX=PROGRAM names another compiler; it says: $problem"
    return 1
}

# Keeps the flags that the compiler takes and whose code this processor runs: some emulators offer less than they announce.
probe_arch() {
    local accepted="" refused="" flag program='int main(int n, char**) { float x[64]; for (int i = 0; i < 64; ++i) x[i] = i * n;
        float sum = 0; for (float v : x) sum += v * v; return sum > 0 ? 0 : 1; }'
    for flag in $arch -mprefer-vector-width=512; do
        # shellcheck disable=SC2086
        if works -O3 -ffast-math $accepted "$flag" <<< "$program"; then accepted="$accepted $flag"
        elif [[ " ${ARCH:-} " == *" $flag "* ]]; then refused="$refused $flag"; fi
    done
    if [ -n "$refused" ]; then   # some systems keep the processor's name in that variable
        report ARCH "the environment's: this compiler or processor refuses$refused; taking -march=native"
        unset ARCH
        arch=-march=native
        probe_arch
        return
    fi
    arch=${accepted# }
    report architecture "${arch:-plain}"
}

# Debian keeps the flavours in folders of their own and the system-wide library may be another one, hence the run path.
openblas_of_debian() {
    local folder
    for folder in /usr/lib/*/openblas-"$1"; do
        [ -d "$folder" ] || continue
        echo "-isystem /usr/include/$(basename "$(dirname "$folder")")/openblas-$1|-L$folder -Wl,-rpath,$folder -lopenblas|, $folder"
    done
}

# Lines `COMPILER FLAGS|LINKER FLAGS|PLACE` of where OpenBLAS may be. The OpenMP flavour first: it shares its threads with ours.
openblas_places() {
    openblas_of_debian openmp
    if command -v pkg-config > /dev/null && pkg-config --exists openblas; then
        echo "$(pkg-config --cflags openblas)|$(pkg-config --libs openblas)|, pkg-config"
    fi
    echo "|-lopenblas|"
    echo "-I/usr/include/openblas|-lopenblas|"
    openblas_of_debian pthread
    openblas_of_debian serial
}

# Optional: matrix products are then loops of our own. <cblas.h> alone may be that of the reference library, which is slower than those.
probe_openblas() {
    local place first="" program='#include <cblas.h>
        #include <cstdio>
        int main() {
            float a[4] = {1, 2, 3, 4}, c[4];
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, 2, 2, 2, 1, a, 2, a, 2, 0, c, 2);
            const int kind = openblas_get_parallel();
            std::puts(kind == OPENBLAS_OPENMP ? "OpenMP" : kind == OPENBLAS_THREAD ? "threads of its own" : "one thread");
            return c[3] == 25 && openblas_get_corename() ? 0 : 1;
        }' without="matrix products on the CPU will be several times slower"
    while IFS="|" read -r blas_flags blas_libs place; do
        # shellcheck disable=SC2086
        if works $blas_flags $blas_libs <<< "$program"; then
            report OpenBLAS "found ($(cat "$work/answer")$place)"
            blas_source=model/device/blas/openblas.cpp
            return
        fi
        # The first place that has anything says best what is wrong.
        # shellcheck disable=SC2086
        [ -n "$first" ] || ! CPPFLAGS="${CPPFLAGS:-} $blas_flags" has_header openblas_config.h || first=$problem
    done < <(openblas_places)
    blas_flags="" blas_libs="" blas_source=model/device/blas/loops.cpp
    if [ -n "$first" ]; then
        without="$without; its headers are there, but a program with them fails: $first"
        lack optional broken libopenblas-openmp-dev OpenBLAS "$without"
    else lack optional missing libopenblas-openmp-dev OpenBLAS "$without"; fi
}

probe_headers() {
    library CLI11 required libcli11-dev CLI/CLI.hpp "programs cannot read their options" -E <<< '#include <CLI/CLI.hpp>
        #if CLI11_VERSION_MAJOR < 2
        #error it is older than 2.0
        #endif'
    library nlohmann-json required nlohmann-json3-dev nlohmann/json.hpp "programs cannot read JSON" -E <<< '#include <nlohmann/json.hpp>
        #if NLOHMANN_JSON_VERSION_MAJOR < 3
        #error it is older than 3.0
        #endif'
    library xxhash required libxxhash-dev xxhash.h "checkpoints cannot be verified" <<< '#define XXH_INLINE_ALL
        #include <xxhash.h>
        int main() { return XXH3_64bits("", 0) != 0 ? 0 : 1; }'
}

# text_library SOURCE FLAG NAME PACKAGE HEADER WITHOUT: a library of ./tokenize and of what encodes text. Where it is missing,
# data/without/SOURCE.cpp takes the place of data/SOURCE.cpp.
text_library() {
    if library "$3" $of_tests "$4" "$5" "$6" "$2"; then text_libs="$text_libs $2"; else stand_ins="$stand_ins $1"; fi
}

# PCRE2 before 10.40 does not know \p{White_Space}. Some libarchives are built without xz or zstd and would start a program for them.
probe_text_libraries() {
    text_libs="" stand_ins=""
    text_library pretokenizer -lpcre2-8 PCRE2 libpcre2-dev pcre2.h "no text to the ids of a tokenizer.json" <<< '#include <cstdio>
        #define PCRE2_CODE_UNIT_WIDTH 8
        #include <pcre2.h>
        int main() {
            int error; size_t place;
            if (pcre2_compile((PCRE2_SPTR)"\\p{White_Space}", 15, PCRE2_UTF | PCRE2_UCP, &error, &place, nullptr)) return 0;
            std::fputs("it is older than 10.40", stderr);
            return 1;
        }'
    text_library nfc -lutf8proc utf8proc libutf8proc-dev utf8proc.h \
        "no text beyond Latin letters to the ids of Qwen's tokenizers" <<< '#include <utf8proc.h>
        int main() { return utf8proc_get_property(0x301)->combining_class == 230 ? 0 : 1; }'
    text_library archive_stream -larchive libarchive libarchive-dev archive.h "no text files with .xz or .zst" <<< '#include <archive.h>
        #include <cstdio>
        int main() {
            archive* a = archive_read_new();
            const bool xz = archive_read_append_filter(a, ARCHIVE_FILTER_XZ) == ARCHIVE_OK;
            if (xz && archive_read_append_filter(a, ARCHIVE_FILTER_ZSTD) == ARCHIVE_OK) return 0;
            std::fputs("it was built without xz or zstd", stderr);
            return 1;
        }'
    text_library gzip_stream -lz zlib zlib1g-dev zlib.h "no text files with .gz" <<< '#include <zlib.h>
        int main() { return zlibVersion()[0] == ZLIB_VERSION[0] ? 0 : 1; }'
}

# Only the tests need Catch2: version 3 brings a library with main(), version 2 is one header.
probe_catch2() {
    catch_libs=""
    if works -lCatch2Main -lCatch2 <<< '#include <catch2/catch_all.hpp>
        TEST_CASE("probe") { CHECK(true); }'; then
        catch_libs="-lCatch2Main -lCatch2"
        report Catch2 "found (version 3)"
    elif has_header catch2/catch.hpp; then report Catch2 "found (version 2)"
    elif has_header catch2/catch_all.hpp; then
        lack $of_tests broken catch2 Catch2 "the tests cannot be built; its headers are there, but a test with them fails: $problem"
    else lack $of_tests missing catch2 Catch2 "the tests cannot be built"; fi
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
    if library MPI optional openmpi-bin,libopenmpi-dev mpi.h "one process per run" $mpi_flags $mpi_libs <<< "$program"; then have_mpi=1; fi
}

# Of scripts, not of programs. plot_loss.py turns to the system's python3 by itself when another one is in front of it.
probe_python() {
    has_module() { python3 -c "import $1" 2> /dev/null || /usr/bin/python3 -c "import $1" 2> /dev/null; }
    if has_module matplotlib; then report matplotlib found
    else lack optional missing python3-matplotlib matplotlib "no pictures of loss and attention"; fi
    [ "$level" = test ] || return 0
    has_module sys || lack required missing python3 python3 "the tests' scripts cannot run"
    has_module ensurepip,venv || lack optional missing python3-venv venv "no Python packages for the tests of scripts"
}

# In the place of a whole file by renaming: whoever is interrupted leaves the file of before, or none.
write_config() {
    mkdir -p "$(dirname "$output")" && unfinished=$(mktemp "$output.XXXXXX") || exit
    trap 'rm -rf "$work" "$unfinished"' EXIT
    cat > "$unfinished" << END && chmod 644 "$unfinished" && mv "$unfinished" "$output" && return
# Written by scripts/probe.sh; make writes it anew when the machine changes.
PROCESSOR_FLAGS := $arch
BLAS_SOURCE := $blas_source
BLAS_CXXFLAGS := $blas_flags
BLAS_LIBS := $blas_libs
TEXT_LIBS :=$text_libs
WITHOUT :=$stand_ins
CATCH2_LIBS := $catch_libs
HAVE_MPI := $have_mpi
MPI_CXXFLAGS := $mpi_flags
MPI_LIBS := $mpi_libs
HAVE_CUDA := $have_cuda
NVCC := $nvcc
NVCC_FLAGS := $nvcc_flags
CUDA_ARCH ?= $cuda_arch
CUDA_LIBS := $cuda_libs
HAVE_NCCL := $have_nccl
NCCL_CXXFLAGS := $nccl_flags
NCCL_LIBS := $nccl_libs
END
    echo "$output cannot be written: is the disk full, or the folder another user's?" >&2
    exit 1
}

is_required_missing() { printf '%s\n' "${lacks[@]}" | grep -q '^required '; }

echo "what this machine has:" >&2
if probe_compiler; then   # also where there is none: then everything is missing
    [ -z "$output" ] || [ ${#lacks[@]} -gt 0 ] || probe_arch
    probe_openblas
    probe_headers
    probe_text_libraries
    if [ -n "$output" ] || [ "$level" = test ]; then probe_catch2; fi
    probe_mpi
fi
if [ -z "$output" ]; then
    command -v make > /dev/null || lack required missing make make "nothing can be built"
    probe_python
    [ ${#lacks[@]} -eq 0 ] || printf '%s\n' "${lacks[@]}"
    exit 0
fi
if is_required_missing; then
    rm -f "$output"
    echo "scripts/install.sh run  installs what is missing, or prints the line that does" >&2
    exit 1
fi
# shellcheck source=scripts/probe_cuda.sh
. scripts/probe_cuda.sh
write_config
