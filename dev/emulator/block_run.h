// The worker's loop for a block: starts fibers, switches between them, ends them, and explains deadlocks.
#pragma once
#include <sched.h>

#include "block.h"

namespace emulator {

// ---- before the first thread runs

inline void Worker::begin(Thread& thread, int index_in_block) {
    if (thread.started && !thread.ended) {   // left by a failed launch
        if (!FINDS_RACES) stacks.give_back(thread.context.stack);
        thread.context.tsan_fiber = nullptr;
    }
    thread.index = index_in_block;
    thread.started = thread.ended = false;
    thread.warp = &block->warps[size_t(index_in_block / LANES)];
    thread.waits_at = nullptr;
    thread.copies.clear();
    thread.groups = 0;
    thread.products.clear();
    thread.accumulators.clear();
    thread.product_groups = 0;
    thread.registers_fenced = false;
    thread.proxy_fences = 0;
#if EMULATOR_TSAN
    if (!thread.context.tsan_fiber) thread.context.tsan_fiber = __tsan_create_fiber(0);
#endif
    ready.add(&thread);
}

inline void Worker::begin(uint3 index, uint64_t number) {
    block = &blocks[started++ % blocks.size()];
    block->index = index;
    block->size = kernel->threads;
    block->ended = 0;
    block->uses++;
    block->shared.start(kernel->shared);
    failed = false;
    blockIdx = index;
    blockDim = dim3(unsigned(kernel->threads));
    gridDim = kernel->grid;
    ready.start(options().seed, number);
    for (int i = 0; i < block->size; i++) begin(block->threads[size_t(i)], i);
    block->barrier = {block->threads.data(), block->size};
    for (int w = 0; w < block->size / LANES; w++) block->warps[size_t(w)] = {&block->threads[size_t(w * LANES)], LANES};
    for (int g = 0; g < block->size / GROUP; g++) block->warpgroups[size_t(g)] = {&block->threads[size_t(g * GROUP)], GROUP};
    ready.shuffle_warps(0);
#if EMULATOR_TSAN
    origin.tsan_fiber = __tsan_get_current_fiber();
#endif
}

// ---- from thread to thread

/// Gives a thread its stack and the frame that the first switch restores.
EMULATOR_PLAIN inline void Worker::start(Thread& thread) {
    Quiet quiet;
    char*& stack = thread.context.stack;
    if (!FINDS_RACES || !stack) stack = stacks.take();   // ThreadSanitizer: a stack stays with its fiber
    thread.started = true;
    permit(stack, STACK_BYTES);   // the frames of an abandoned thread
    thread.context.stack_pointer = first_frame(stack, size_t(thread.index), &Worker::fiber);
}

EMULATOR_PLAIN inline void Worker::become(Thread& thread) {
    self = &thread;
    threadIdx.x = unsigned(thread.index);
}

EMULATOR_PLAIN inline void Worker::resume(Context& from, Thread& to, bool for_good) {
    if (!to.started) start(to);
    become(to);
    switch_context(from, to.context, for_good);
}

EMULATOR_PLAIN inline void Worker::wait() {
    Thread& me = *self;
    Thread* next = ready.next();
    if (next == &me) return;
    if (next) return resume(me.context, *next);
    switch_context(me.context, origin);   // no thread can run: run() explains why
}

inline void Worker::yield_thread() {
    if (!ready.coin()) return;
    ready.add(self);
    wait();
}

inline void Worker::wake_up() {
    if (naps >= TIRING) progress->tired--;
    naps = 0;
}

inline bool Worker::nap() {
    // A block whose wait has ended counts as tired until it runs again, which never takes this long.
    constexpr std::chrono::milliseconds LONGEST_NAP{400};
    naps = std::min(naps + 1, TIRING + 1);
    if (naps == TIRING) progress->tired++;
    if (naps >= TIRING) {
        const auto now = std::chrono::steady_clock::now();
        if (progress->tired < progress->running || naps == TIRING) all_tired = now;
        if (now - all_tired > LONGEST_NAP) return false;
    }
    if (progress->running > 1) sched_yield();
    ready.add(self);
    wait();
    return true;
}

/// The body of every fiber: the kernel for its thread, then for threads that have not started yet, without any switch.
EMULATOR_PLAIN inline void Worker::fiber() {
    Worker& me = *worker;
    arrive_on_new_fiber(me.origin);
    for (;;) {
        Thread& thread = *self;
        acquire(me.launch_sign);
        acquire(me.block->sign_before());
        me.run_body();
        release(me.block->sign_after());
        Thread* next = me.end(thread);
        if (!next) switch_context(thread.context, me.origin, true);
        if (next->started || FINDS_RACES) me.resume(thread.context, *next, true);
        next->started = true;
        next->context.stack = thread.context.stack;
        me.become(*next);
    }
}

/// Runs the kernel for one thread. A fiber ends only by a switch, and no switch may happen inside a handler.
inline void Worker::run_body() {
    try {
        kernel->body();
        return;
    } catch (const Error& error) {
        Quiet quiet;
        failure = error.what();
    } catch (const std::exception& error) {
        Quiet quiet;
        failure = join(kernel->name(), ", thread ", self->index, ", threw: ", error.what());
    } catch (...) {
        Quiet quiet;
        failure = kernel->name() + " threw an unknown exception";
    }
    failed = true;
}

/// Takes a thread off the list; returns the next one to run. Its stack is free unless an unstarted thread takes it over.
inline Thread* Worker::end(Thread& thread) {
    Quiet quiet;
    wake_up();
    thread.ended = true;
    block->ended++;
    const char* const left = !thread.copies.empty() ? "cp.async copies" : !thread.products.empty() ? "wgmma products" : nullptr;
    if (left && !failed) {
        failed = true;
        const std::string where = join(block_name(), ", thread ", thread.index);
        failure = join(kernel->name(), ", ", where, ": ends with ", left, " that it never waited for");
    }
    Thread* next = failed ? nullptr : ready.next();
    if (!FINDS_RACES && (!next || next->started)) stacks.give_back(thread.context.stack);
    return next;
}

// ---- the whole block

inline void Worker::run(const Kernel& kernel_, Progress& progress_, uint3 index, uint64_t number) {
    Quiet quiet;
    kernel = &kernel_;
    progress = &progress_;
    begin(index, number);
    resume(origin, *ready.next());   // returns when all threads have ended, one has failed, or none can run
    self = nullptr;
    wake_up();
    if (!failed && block->ended < block->size) {
        failure = deadlock();
        failed = true;
    }
    if (failed) {
        abandon();
        throw Error(failure);
    }
    const std::string damage = block->shared.damage();
    if (!damage.empty()) throw Error(join(kernel->name(), ", ", block_name(), ": ", damage));
}

/// After a failure: the unfinished fibers never run again. ThreadSanitizer must see that they happened before everything later.
inline void Worker::abandon() {
#if EMULATOR_TSAN
    for (int i = 0; i < block->size; i++) {
        __tsan_switch_to_fiber(block->threads[size_t(i)].context.tsan_fiber, 0);
        __tsan_switch_to_fiber(origin.tsan_fiber, 0);
    }
#endif
}

/// The message of a deadlock: where the threads wait, grouped by what they wait for.
inline std::string Worker::deadlock() const {
    struct Group {
        std::string where;
        int first, count;
    };
    std::vector<Group> groups;
    for (int i = 0; i < block->size; i++) {
        const Thread& thread = block->threads[size_t(i)];
        const std::string where = thread.ended ? "ended" : join("at ", thread.waits_at->operation, ", ", place(thread.waits_at->at));
        auto same = std::ranges::find(groups, where, &Group::where);
        if (same == groups.end()) groups.push_back({where, i, 1});
        else same->count++;
    }
    std::string text = join(kernel->name(), ", ", block_name(), ": deadlock, the threads wait for each other:");
    for (const auto& [where, first, count] : groups)
        text += join("\n    ", count, count == 1 ? " thread" : " threads", ", first ", first, ": ", where);
    return text;
}

}   // namespace emulator
