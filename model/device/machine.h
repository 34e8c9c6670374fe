// The machine's resources and their use by this process: BLAS kernels, threads and memory.
#pragma once
#include <cstddef>
#include <string>

/// Call first in main(). OpenBLAS picks kernels by the processor's name when it is loaded, and slow ones for unknown names. If the
/// processor supports faster ones, this re-executes the program with OPENBLAS_CORETYPE set (nearly twice the speed on AVX-512
/// machines newer than the library, or if the environment names an older processor). KEEP_OPENBLAS_CORETYPE=1 in the environment
/// disables it.
void choose_blas_kernels(char** argv);

/// Keeps up to 64 MiB of freed memory in the process from now on. The attention kernels allocate and free working memory in every call.
/// Returned to the system, it would be faulted in again page by page, which took a tenth of a sparse layer's backward pass.
void disable_malloc_trim();

/// Requests huge pages (2 MiB on x86) for this memory, if the system leaves the choice to programs; it may decline. Rows far apart, as in a
/// strided pattern, then cause fewer TLB misses.
void prefer_large_pages(void* start, size_t bytes);

/// Bytes that can still be allocated: free and reclaimable memory, or what is left of the cgroup's limit if that is less.
size_t available_memory();

/// Bytes of address space left to this process under a limit (ulimit -v), which applies to each process.
size_t address_space_left();

/// Resident bytes of this process: peak and current.
size_t peak_memory();
size_t resident_memory();

/// Sets and returns the number of threads of OpenMP and BLAS: `wanted`, or for 0 this process's share of its processors. Fewer, with a note
/// on stderr, if OpenMP starts fewer or the address space has no room for the buffers of their products. (OpenBLAS would wait forever for
/// either.) Exit::out_of_memory without room for one thread.
int use_threads(int wanted, int local_ranks);

/// Processors of this machine.
int processors();

/// "AMD EPYC, 2 threads, OpenBLAS SkylakeX"
std::string describe_cpu(int threads);

/// Warns on stderr if matrix products will be slow: no BLAS, or one with its own thread pool, which would compete with OpenMP's.
void warn_about_blas();
