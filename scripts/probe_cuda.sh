# shellcheck shell=bash
# The half of scripts/probe.sh that looks for nvcc, GPUs and NCCL; it is sourced there and sets have_cuda, nvcc, nvcc_flags, cuda_arch,
# cuda_libs, have_nccl, nccl_flags and nccl_libs. All of it is optional.
# shellcheck disable=SC2154  # cxx, work and report() are those of probe.sh

# Like works(), for CUDA: nvcc compiles the program on stdin for $cuda_arch, the C++ compiler links it.
cuda_works() {
    cat > "$work/probe.cu"
    # shellcheck disable=SC2086
    "$nvcc" ${CPPFLAGS:-} $nvcc_flags $cuda_arch -c "$work/probe.cu" -o "$work/probe.o" > "$work/log" 2>&1 \
        && $cxx "$work/probe.o" -o "$work/probe" ${LDFLAGS:-} "$@" $cuda_libs > "$work/log" 2>&1 \
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
    # Without a GPU to look at: code for both generations that the engine was made for. The PTX for 8.0 is kept for later GPUs: their
    # driver compiles it at the first start (minutes, on every rank), and dQ is added number by number (add_in_memory()).
    [ -n "$wanted" ] || cuda_arch=$(printf -- '-gencode arch=compute_%s,code=%s ' 80 sm_80 80 compute_80 90a sm_90a)
    cuda_arch=${cuda_arch% }
    for capability in $wanted; do add_arch "$capability"; done
    report "GPU code" "$cuda_arch"
}

# For a GPU that is newer than this nvcc: the newest code that the driver can compile further.
add_arch() {
    local flag program='__global__ void add(float* x) { x[threadIdx.x] += 1; }
        int main() { return 0; }' before=$cuda_arch
    local exact=${1/#90/90a}   # wgmma is only in the code for exactly this generation
    for flag in "arch=compute_$exact,code=sm_$exact" "arch=compute_$1,code=sm_$1" arch=compute_90,code=compute_90 \
                arch=compute_80,code=compute_80; do
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

probe_cuda
probe_nccl
