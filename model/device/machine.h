// The machine's resources and how this process uses them: BLAS kernels, threads and memory.
#pragma once
#include <cstddef>
#include <string>

/// Call first in main(). OpenBLAS picks kernels by the processor's name when it is loaded, and slow ones for unknown names. If the
/// processor supports faster ones, this re-executes the program with OPENBLAS_CORETYPE set (nearly twice the speed on AVX-512
/// machines newer than the library, or if the environment names an older processor). KEEP_OPENBLAS_CORETYPE=1 in the environment
/// disables it.
void choose_blas_kernels(char** argv);

/// From now on the process keeps up to 64 MiB of freed memory. The attention kernels allocate and free working memory in every
/// call; returned to the system, it would be faulted in again page by page, which was a tenth of a sparse layer's backward pass.
void disable_malloc_trim();

/// Asks the system to back this memory with huge pages (2 MiB on x86), if it leaves the choice to programs; it may decline. Rows
/// far apart, as in a strided pattern, then cause fewer TLB misses.
void prefer_large_pages(void* start, size_t bytes);

/// Bytes that can still be allocated: free and reclaimable memory, or what is left of the cgroup's limit if that is less.
size_t available_memory();

/// Bytes of address space that a limit (ulimit -v) leaves this process, of which each has its own.
size_t address_space_left();

/// Resident bytes of this process: peak and current.
size_t peak_memory();
size_t resident_memory();

/// Sets and returns the number of threads of OpenMP and BLAS: `wanted`, or, if that is 0, this process's share of the processors it
/// may run on; fewer, with a note on stderr, where OpenMP does not give as many, or the address space has no room for the buffers of
/// their products. (OpenBLAS would wait forever for either.) Exit::out_of_memory where it has none for one thread.
int use_threads(int wanted, int local_ranks);

/// Processors of this machine.
int processors();

/// "AMD EPYC, 2 threads, OpenBLAS SkylakeX"
std::string describe_cpu(int threads);

/// Warns on stderr if matrix products will be slow: no BLAS, or one with its own thread pool, which would compete with OpenMP's.
void warn_about_blas();
