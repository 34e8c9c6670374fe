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

# Of the tokenizers. PCRE2 before 10.40 does not know \p{White_Space}.
probe_text_libraries() {
    local found
    found=no; works -lpcre2-8 <<< '#define PCRE2_CODE_UNIT_WIDTH 8
        #include <pcre2.h>
        int main() {
            int error; size_t place;
            return pcre2_compile((PCRE2_SPTR)"\\p{White_Space}", 15, PCRE2_UTF | PCRE2_UCP, &error, &place, nullptr) ? 0 : 1;
        }' && found=yes
    require PCRE2 libpcre2-dev "$found"
    found=no; works -lutf8proc <<< '#include <utf8proc.h>
        int main() { return utf8proc_get_property(0x301)->combining_class == 230 ? 0 : 1; }' && found=yes
    require utf8proc libutf8proc-dev "$found"
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

# Of ./tokenize. Some libarchives are built without xz or zstd and would start a program for them.
probe_compression() {
    local found
    found=no; works -lz <<< '#include <zlib.h>
        int main() { return zlibVersion()[0] == ZLIB_VERSION[0] ? 0 : 1; }' && found=yes
    require zlib zlib1g-dev "$found"
    found=no; works -larchive <<< '#include <archive.h>
        int main() {
            archive* a = archive_read_new();
            const bool xz = archive_read_append_filter(a, ARCHIVE_FILTER_XZ) == ARCHIVE_OK;
            return xz && archive_read_append_filter(a, ARCHIVE_FILTER_ZSTD) == ARCHIVE_OK ? 0 : 1;
        }' && found=yes
    require libarchive libarchive-dev "$found"
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

# Like works(), for CUDA: nvcc compiles the program on stdin for $cuda_arch, the C++ compiler links it.
cuda_works() {
    cat > "$work/probe.cu"
    # shellcheck disable=SC2086
    "$nvcc" $nvcc_flags $cuda_arch -c "$work/probe.cu" -o "$work/probe.o" > "$work/log" 2>&1 \
        && $cxx "$work/probe.o" -o "$work/probe" "$@" $cuda_libs > "$work/log" 2>&1 \
        && "$work/probe" > "$work/answer" 2>> "$work/log"
}

# Optional: without it the programs train on the CPU. A CUDA that is found must compile, link and start a program.
probe_cuda() {
    local folder flag program='#include <cublasLt.h>
        #include <cstdio>
        #include <source_location>
        #include <span>
        __global__ void add(float* x) { x[threadIdx.x] += 1; }
        int line(std::source_location at = std::source_location::current()) { return at.line(); }   // not before CUDA 12.2
        int main() {
            if (line() == 0) return 1;
            cublasLtGetVersion();
            int devices = 0, driver = 0;
            cudaDriverGetVersion(&driver);   // the newest CUDA that the driver can serve
            if (driver == 0) return std::puts("none (no driver)"), 0;
            if (driver / 1000 < CUDART_VERSION / 1000)
                return std::printf("none (driver for CUDA %d.%d: too old for this nvcc)\n", driver / 1000, driver % 1000 / 10), 0;
            if (cudaError_t error = cudaGetDeviceCount(&devices)) return std::printf("none (%s)\n", cudaGetErrorString(error)), 0;
            for (int d = 0; d < devices; d++) {
                cudaDeviceProp gpu;
                if (cudaGetDeviceProperties(&gpu, d) == cudaSuccess) std::printf("%d.%d %s\n", gpu.major, gpu.minor, gpu.name);
            }
        }'
    have_cuda=0 cuda_arch="" cuda_libs="" nvcc_flags=""
    nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2> /dev/null || true)
    if [ -z "$nvcc" ]; then
        report CUDA "not found: no nvcc; the programs train on the CPU"
        return
    fi

    # nvcc knows where its own libraries are; the C++ compiler must be told.
    echo 'int main() {}' > "$work/empty.cu"
    for folder in $("$nvcc" -dryrun "$work/empty.cu" 2>&1 | grep LIBRARIES= | grep -o '"-L[^"]*"' | tr -d '"' | cut -c 3-); do
        case $folder in */stubs) continue ;; esac
        [ -d "$folder" ] && cuda_libs="$cuda_libs-L$(realpath "$folder") -Wl,-rpath,$(realpath "$folder") "
    done
    cuda_libs="$cuda_libs-lcublasLt -lcudart"
    for flag in "" "-ccbin $cxx" "-allow-unsupported-compiler"; do   # nvcc takes g++ by itself, and not every version of it
        nvcc_flags="-std=c++20 --expt-relaxed-constexpr${flag:+ $flag}"
        cuda_works <<< "$program" && have_cuda=1 && break
    done
    if [ "$have_cuda" = 0 ]; then
        report CUDA "found ($nvcc), but it cannot compile, link and start a program: $(grep -m 1 -iE 'error|cannot' "$work/log")"
        nvcc="" nvcc_flags="" cuda_libs=""
        return
    fi
    report CUDA "found ($("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p'), $nvcc)"
    probe_gpu "$(cat "$work/answer")"
}

# probe_gpu LIST: compiles for the GPUs in the list (lines `MAJOR.MINOR NAME`), or for all that come into question if there is none.
probe_gpu() {
    local capability wanted="" note=""
    # shellcheck disable=SC2013  # words are what is wanted
    for capability in $(grep -oE '^[0-9]+\.[0-9]+' <<< "$1" | sort -u); do
        if awk "BEGIN { exit !($capability < 8) }"; then note=" (too old: capability 8.0 is the least)"
        else wanted="$wanted $(tr -d . <<< "$capability")"; fi
    done
    report GPU "$(sort <<< "$1" | uniq -c | sed -E 's/^ *1 //; s/^ *([0-9]+) ([0-9])/\1 x \2/' | paste -sd, | sed 's/,/, /g')$note"
    # Without a GPU to look at: portable code, which the driver compiles at the first start for whatever GPU there is then.
    [ -n "$wanted" ] || cuda_arch="-gencode arch=compute_80,code=compute_80"
    for capability in $wanted; do add_arch "$capability"; done
    report "GPU code" "$cuda_arch"
}

# For a GPU that is newer than this nvcc: the newest code that the driver can compile further.
add_arch() {
    local flag program='__global__ void add(float* x) { x[threadIdx.x] += 1; }
        int main() { return 0; }' before=$cuda_arch
    for flag in "arch=compute_$1,code=sm_$1" arch=compute_90,code=compute_90 arch=compute_80,code=compute_80; do
        cuda_arch="-gencode $flag"
        if cuda_works <<< "$program"; then cuda_arch="$before${before:+ }$cuda_arch"; return; fi
    done
    cuda_arch=$before
}

# Optional: without it GPUs exchange their gradients through the memory of the host.
probe_nccl() {
    local folder program='#include <nccl.h>
        #include <cstdio>
        int main() {
            int v = 0;
            if (ncclGetVersion(&v) != ncclSuccess) return 1;
            std::printf("%d.%d.%d\n", v / 10000, v / 100 % 100, v % 100);
        }' own_flags=$nvcc_flags
    have_nccl=0 nccl_flags="" nccl_libs=""
    [ "$have_cuda" = 1 ] || return
    for folder in "" "${NCCL_HOME:-}" "${CONDA_PREFIX:-}"; do
        nccl_flags=${folder:+-I$folder/include} nccl_libs="${folder:+-L$folder/lib -Wl,-rpath,$folder/lib }-lnccl"
        nvcc_flags="$own_flags $nccl_flags"
        # shellcheck disable=SC2086
        if cuda_works $nccl_libs <<< "$program"; then have_nccl=1; break; fi
    done
    nvcc_flags=$own_flags
    if [ "$have_nccl" = 1 ]; then
        report NCCL "found ($(cat "$work/answer"))"
    else
        nccl_flags="" nccl_libs=""
        report NCCL "not found: GPUs would exchange gradients through host memory (libnccl-dev, or NCCL_HOME=FOLDER)"
    fi
}

echo "what this machine has:" >&2
probe_compiler
[ ${#missing[@]} -eq 0 ] && probe_arch
probe_openblas
probe_headers
probe_text_libraries
probe_catch2
probe_compression
probe_mpi
probe_cuda
probe_nccl
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
HAVE_CUDA := $have_cuda
NVCC := $nvcc
NVCC_FLAGS := $nvcc_flags
CUDA_ARCH := $cuda_arch
CUDA_LIBS := $cuda_libs
HAVE_NCCL := $have_nccl
NCCL_CXXFLAGS := $nccl_flags
NCCL_LIBS := $nccl_libs
END
