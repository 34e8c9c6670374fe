// What the machine offers and how this process uses it: BLAS kernels, threads, memory, a measured ceiling, signals.
#pragma once
#include <cstddef>
#include <string>

/// OpenBLAS picks its kernels by the processor's name when it is loaded, and takes slow ones for names that it does not know.
/// Where the processor can do better, this starts the program once more with OPENBLAS_CORETYPE set (nearly twice the speed on
/// AVX-512 machines newer than the library, or where the environment names an older processor). Call it first in main().
/// KEEP_OPENBLAS_CORETYPE=1 in the environment leaves the choice alone.
void choose_blas_kernels(char** argv);

/// From here on freed memory up to 64 MiB stays with the process. The attention kernels take and free working memory in every call;
/// given back to the system it would come again page by page, which was a tenth of a sparse layer's backward pass.
void keep_freed_memory();

/// Asks the system to back these bytes by large pages (2 MiB on x86), where it leaves the choice to programs. Rows that lie far
/// apart, as those of a strided pattern do, then cost fewer lookups of addresses. It may decline.
void prefer_large_pages(void* start, size_t bytes);

/// Bytes that a new allocation can still get: free memory and what the kernel can reclaim, or the control group's limit.
size_t available_memory();

/// Resident bytes of this process, the most so far and now.
size_t peak_memory();
size_t resident_memory();

/// "1.50 GiB", "12.3 MiB", "640 B"
std::string human_bytes(double bytes);

/// Sets the number of OpenMP threads: `wanted`, or, when that is 0, this process's share of the processors it may run on.
/// Returns the number.
int use_threads(int wanted, int local_ranks);

/// Processors of this machine.
int processors();

/// "AMD EPYC, 2 threads, OpenBLAS SkylakeX"
std::string describe_cpu(int threads);

/// Warns on stderr when matrix products will be slow: no BLAS, or one with threads of its own that would fight with OpenMP's.
void warn_about_blas();

/// Floating-point operations per second of a float32 linear layer, 512 x 512 with 1024 rows, here and now: the ceiling that MFU
/// refers to.
double measure_sgemm();

/// From here on a reader of standard output that goes away (`| head`) costs the run nothing but its words.
void outlive_readers();

/// From here on SIGINT, SIGTERM and SIGUSR1 only set a flag; a second SIGINT ends the process at once.
void catch_stop_signals();
bool stop_requested();

/// The file of the running program; empty where /proc does not tell.
std::string program_path();

/// The folder of the running program, for files that come with it (data, scripts).
std::string program_folder();
