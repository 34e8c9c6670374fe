// Synchronisation of threads: barriers of a block and operations of a warp. Threads wait until all have arrived. The last one does
// the work of the whole warp, because every lane has left a pointer to its arguments.
#pragma once
#include "block_run.h"

namespace emulator {

/// Releases all threads at the barrier.
inline void open_barrier(Block& block, int id) {
    Barrier& barrier = block.barriers[size_t(id)];
    barrier.arrived = 0;
    barrier.generation++;
    worker->wake_up();
    const size_t first = worker->ready.size();
    for (int i = 0; i < block.size; i++) {
        Thread& thread = block.threads[size_t(i)];
        if (thread.barrier != id) continue;
        thread.barrier = -1;
        if (&thread != self) worker->ready.add(&thread);
    }
    worker->ready.shuffle_warps(first);
}

/// bar.sync: waits until `threads` threads of the block are at barrier `id`.
inline void meet_at_barrier(int id, int threads, const Location& at) {
    Quiet quiet;
    if (id < 0 || id >= BARRIERS) fail_at(at, "there are barriers 0 to ", BARRIERS - 1, ", not ", id);
    if (threads <= 0 || threads % LANES || threads > int(blockDim.x))
        fail_at(at, "a barrier for ", threads, " threads in a block of ", blockDim.x, "; whole warps have to meet");
    Thread& me = *self;
    Barrier& barrier = me.block->barriers[size_t(id)];
    if (barrier.arrived && id == 0 && barrier.at.line() != at.line())
        fail_at(at, "__syncthreads() diverges: other threads of the block wait at ", place(barrier.at));
    if (barrier.arrived && barrier.expected != threads)
        fail_at(at, "barrier ", id, " for ", threads, " threads; others at ", place(barrier.at), " wait for ", barrier.expected);
    barrier.at = at;
    barrier.expected = threads;
    me.operation = "barrier";
    me.at = at;
    me.detail = uint32_t(id);
    me.barrier = id;
    char& sign = barrier.signs[barrier.generation % 2];
    release(sign);
    if (++barrier.arrived == threads) {
        open_barrier(*me.block, id);
        worker->yield_thread();
    } else {
        worker->wait();
    }
    acquire(sign);
}

/// Adds the calling lane to the lanes of its mask that wait at the same operation.
inline Gathering& join_gathering(Warp& warp, const Thread& me) {
    for (Gathering& gathering : warp.gatherings) {
        if (gathering.mask != me.detail || gathering.operation != me.operation || gathering.at.line() != me.at.line()) continue;
        gathering.arrived |= 1u << me.lane();
        return gathering;
    }
    warp.gatherings.push_back({me.detail, 1u << me.lane(), me.operation, me.at});
    return warp.gatherings.back();
}

/// Waits until all lanes of `mask` have arrived; then one of them calls work(arguments of the 32 lanes, mask).
inline void meet_in_warp(const char* operation, uint32_t mask, void* argument, void (*work)(void**, uint32_t), const Location& at) {
    Thread& me = *self;
    Warp& warp = *me.warp;
    void* arguments[LANES];   // unset for lanes outside of the mask
    {
        Quiet quiet;
        if (!(mask >> me.lane() & 1)) fail_at(at, operation, ": the mask does not contain the lane that calls it");
        me.operation = operation;
        me.at = at;
        me.detail = mask;
        me.argument = argument;
        Gathering& gathering = join_gathering(warp, me);
        release(me.arrived);
        if (gathering.arrived != mask) {
            worker->wait();
            acquire(me.resumed);
            return;
        }
        gathering = warp.gatherings.back();
        warp.gatherings.pop_back();
        worker->wake_up();
        for (int lane = 0; lane < LANES; lane++) {
            if (!(mask >> lane & 1)) continue;
            arguments[lane] = warp.lanes[lane].argument;
            acquire(warp.lanes[lane].arrived);
        }
    }
    if (work) work(arguments, mask);   // not quiet: it accesses the kernel's memory
    Quiet quiet;
    for (int lane = 0; lane < LANES; lane++) {
        if (!(mask >> lane & 1) || lane == me.lane()) continue;
        release(warp.lanes[lane].resumed);
        worker->ready.add(&warp.lanes[lane]);
    }
    worker->yield_thread();
}

/// __nanosleep: lets the other threads of the block and the other blocks run.
inline void nap(const Location& at) {
    Quiet quiet;
    if (worker->progress->failed) fail_at(at, "another block has failed");
    if (!worker->nap()) fail_at(at, "sleeps forever, as do all running blocks; a block may wait only for blocks with a lower ticket");
}

}   // namespace emulator
