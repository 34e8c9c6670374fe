// A block of CUDA threads on one OS thread: every CUDA thread is a fiber, and a waiting one switches to one that can run.
//
//   Thread    a CUDA thread: its fiber, where it waits, its asynchronous copies
//   Block     the threads of one block, their warps, barriers and shared memory
//   Worker    an OS thread that runs blocks, one after the other
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fibers.h"
#include "options.h"
#include "shared_memory.h"
#include "vectors.h"

// Plain variables, so that kernels read them at full speed and a debugger can print them. Every switch sets them.
inline constinit thread_local uint3 threadIdx{}, blockIdx{};
inline constinit thread_local dim3 blockDim{}, gridDim{};

namespace emulator {

inline constexpr int LANES = 32, GROUP = 128, MAX_THREADS = 1024;   // of a warp, a warpgroup, a block
inline constexpr int TIRING = 1 << 12;   // number of __nanosleep in a row after which a block is tired

/// One launch of a kernel.
struct Kernel {
    Location at;                  // the line of the launch
    dim3 grid;
    int threads;                  // per block; blocks have one dimension
    size_t shared;                // bytes
    std::function<void()> body;   // the kernel for one thread

    size_t blocks() const { return size_t(grid.x) * grid.y * grid.z; }
    std::string name() const { return join("the kernel launched by ", function_at(at), " (", place(at), ")"); }
};

/// Shared state of the blocks of a running launch.
struct Progress {
    std::atomic<bool> failed{false};
    std::atomic<int> running{0};   // running blocks
    std::atomic<int> tired{0};     // running blocks that have long called only __nanosleep
};

/// cp.async: bytes that are copied when the thread waits for their group.
struct PendingCopy {
    char* to;
    const char* from;
    int bytes, take;   // `take` bytes are copied, the rest of `bytes` becomes zero
    int group;
};

/// wgmma: a product of the thread's warpgroup that is not yet waited for.
struct Product {
    float* d;
    int columns;
    const uint32_t* a;   // four registers, or null
    uint64_t a_matrix, b_matrix;
    bool a_transposed, b_transposed, adds;
    int group;
    bool computed;
    Location at;

    bool has_arguments_of(const Product& other) const {
        return columns == other.columns && !a == !other.a && a_matrix == other.a_matrix && b_matrix == other.b_matrix &&
               a_transposed == other.a_transposed && b_transposed == other.b_transposed && adds == other.adds;
    }
};

/// The accumulators of such products; the program finds poison in them.
struct PendingAccumulators {
    float* d;
    int count, group;   // of the last product
    std::array<float, 64> values;

    PendingAccumulators(float* d_, int count_) : d(d_), count(count_), group(0), values() {
        std::copy(d, d + count, values.begin());
        std::memset(static_cast<void*>(d), poison(), size_t(count) * sizeof(float));
    }
    bool untouched() const {
        const unsigned char* bytes = reinterpret_cast<const unsigned char*>(d);
        return std::all_of(bytes, bytes + size_t(count) * sizeof(float), [](unsigned char byte) { return byte == poison(); });
    }
};

struct Thread;

/// All threads of a block at a barrier, or all lanes of a warp at an operation: each waits until the last has arrived.
struct Meeting {
    Thread* threads = nullptr;   // neighbours
    int count = 0;
    int arrived = 0;
    const char* operation = "";
    Location at{};
    unsigned generation = 0;
    std::array<char, 2> signs{};   // for ThreadSanitizer, alternating: a thread ahead at the next meeting must not order this one
};

struct alignas(64) Thread {   // a line of the cache for all that a switch needs
    Context context;
    int index = 0;           // threadIdx.x
    bool started = false, ended = false;
    Meeting* warp = nullptr;
    Meeting* waits_at = nullptr;
    void* argument = nullptr;   // of a warp operation: the last lane to arrive does the work for all

    std::vector<PendingCopy> copies;   // in the order of issue
    int groups = 0;                    // committed so far

    std::vector<Product> products;     // in the order of issue
    std::vector<PendingAccumulators> accumulators;
    int product_groups = 0;            // committed so far
    bool registers_fenced = false;     // since then
    unsigned proxy_fences = 0;

    /// The accumulators at d, from the first product that has them on.
    PendingAccumulators& accumulators_of(float* d, int count) {
        for (PendingAccumulators& pending : accumulators)
            if (pending.d == d) return pending;
        return accumulators.emplace_back(d, count);
    }
    int lane() const { return index % LANES; }
};

struct Block {
    std::array<Thread, MAX_THREADS> threads;
    std::array<Meeting, MAX_THREADS / LANES> warps;
    std::array<Meeting, MAX_THREADS / GROUP> warpgroups;
    Meeting barrier;
    SharedMemory shared;
    uint3 index{};
    int size = 0, ended = 0;

    // ThreadSanitizer: the order between this block and the next one that uses the same fibers.
    std::array<char, 2> signs{};
    unsigned uses = 0;
    char& sign_before() { return signs[uses % 2]; }
    char& sign_after() { return signs[(uses + 1) % 2]; }
};

/// The threads that can run, and their order. A correct kernel gives the same result in every order.
class Ready {
public:
    void start(uint64_t seed, uint64_t block) {
        seed_ = seed;
        random_ = Random(seed, block);
        threads_.clear();
        first_ = 0;
    }
    void add(Thread* thread) {
        if (first_ >= MAX_THREADS) {
            threads_.erase(threads_.begin(), threads_.begin() + long(first_));
            first_ = 0;
        }
        threads_.push_back(thread);
    }
    size_t size() const { return threads_.size() - first_; }

    /// Seed 0: in order. Seed 1: last released first, so that one warp runs as far ahead of the others as possible. From 2 on: mostly
    /// like 1, occasionally any thread. (Uniformly random orders find little: all warps advance at about the same speed.)
    Thread* next() {
        if (size() == 0) return nullptr;
        size_t i = seed_ == 0 ? first_++ : threads_.size() - 1;
        if (seed_ > 1 && random_() % 8 == 0) i = random_() % threads_.size();
        Thread* thread = threads_[i];
        if (seed_ > 0) threads_.erase(threads_.begin() + long(i));
        if (size() > 0) __builtin_prefetch(threads_[seed_ == 0 ? first_ : threads_.size() - 1]->context.stack_pointer);
        return thread;
    }

    /// Shuffles the warps of all threads but the first `from`.
    void shuffle_warps(size_t from) {
        if (seed_ < 2 || size() - from < LANES) return;
        const uint64_t salt = random_();
        auto key = [salt](const Thread* thread) { return ((uint64_t(thread->index / LANES) ^ salt) * 0x9e3779b97f4a7c15) >> 20; };
        std::stable_sort(threads_.begin() + long(first_ + from), threads_.end(), [&](Thread* a, Thread* b) { return key(a) < key(b); });
    }

    bool coin() { return seed_ > 1 && random_() % 2; }

private:
    uint64_t seed_ = 0;
    Random random_;
    std::vector<Thread*> threads_;   // in the order of release
    size_t first_ = 0;               // those before it have been taken
};

struct Worker {
    /// Runs one block to its end. Throws if a thread did, and on a deadlock.
    void run(const Kernel& kernel, Progress& progress, uint3 index, uint64_t number);

    /// Called by a thread: others run until something adds this one to `ready`.
    void wait();
    /// Called by a thread: another one may run first.
    void yield_thread();
    /// Called by a polling thread: lets all others run. False if all others only poll, too.
    bool nap();
    /// Something has happened in the block.
    void wake_up();

    Ready ready;
    Block* block = nullptr;         // the running block
    const Kernel* kernel = nullptr;
    Progress* progress = nullptr;
    Context origin;                 // of the OS thread
    Stacks stacks;
    bool failed = false;
    std::string failure;
    int naps = 0;                   // calls of __nanosleep since the block did anything else
    std::chrono::steady_clock::time_point all_tired;   // start of the time in which all running blocks have been tired
    char launch_sign = 0;           // ThreadSanitizer: the host before the launch

    // ThreadSanitizer sees no race within one fiber. So neighbouring blocks use different ones.
    std::array<Block, FINDS_RACES ? 2 : 1> blocks;
    size_t started = 0;

private:
    static void fiber();
    void begin(uint3 index, uint64_t number);
    void begin(Thread& thread, int index_in_block);
    void start(Thread& thread);
    void become(Thread& thread);
    void resume(Context& from, Thread& to, bool for_good = false);
    void run_body();
    Thread* end(Thread& thread);
    void abandon();
    std::string deadlock() const;
};

inline constinit thread_local Worker* worker = nullptr;
inline constinit thread_local Thread* self = nullptr;

inline Worker& this_worker() {
    Quiet quiet;
    static thread_local std::unique_ptr<Worker> own;
    if (!own) own = std::make_unique<Worker>();
    return *(worker = own.get());
}

inline std::string block_name() { return join("block (", blockIdx.x, ",", blockIdx.y, ",", blockIdx.z, ")"); }

/// Ends the launch with a message that names kernel, block, thread and line.
template <class... Parts>
[[noreturn]] void fail_at(const Location& at, const Parts&... parts) {
    Quiet quiet;
    throw Error(join(worker->kernel->name(), ", ", block_name(), ", thread ", threadIdx.x, ", at ", place(at), ": ", parts...));
}

}   // namespace emulator
