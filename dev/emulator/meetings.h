// Synchronisation of threads: barriers of a block and operations of a warp. Threads wait until all have arrived. The last one does
// the work of the whole warp, because every lane has left a pointer to its arguments.
#pragma once
#include "block_run.h"

namespace emulator {

/// Waits until all threads of the meeting are at the same operation; the last one to arrive calls work() before any goes on.
template <class Work>
void meet(Meeting& meeting, const char* operation, void* argument, const Location& at, Work work) {
    Thread& me = *self;
    char& sign = meeting.signs[meeting.generation % 2];
    {
        Quiet quiet;
        if (meeting.arrived && (meeting.operation != operation || meeting.at.line() != at.line()))
            fail_at(at, operation, " diverges: others wait at ", meeting.operation, ", ", place(meeting.at));
        meeting.operation = operation;
        meeting.at = at;
        me.waits_at = &meeting;
        me.argument = argument;
        release(sign);
        if (++meeting.arrived < meeting.count) {
            worker->wait();
            acquire(sign);
            return;
        }
        acquire(sign);
        meeting.arrived = 0;
        meeting.generation++;
        worker->wake_up();
    }
    work();   // not quiet: it accesses the kernel's memory
    Quiet quiet;
    release(sign);
    const size_t first = worker->ready.size();
    for (Thread* thread = meeting.threads; thread < meeting.threads + meeting.count; thread++) {
        thread->waits_at = nullptr;
        if (thread != &me) worker->ready.add(thread);
    }
    worker->ready.shuffle_warps(first);
    worker->yield_thread();
}

/// Waits until all lanes of the warp have arrived; then one of them calls work(arguments of the 32 lanes).
template <class Argument, class Work>
void meet_in_warp(const char* operation, Argument& mine, const Location& at, Work work) {
    Meeting& warp = *self->warp;
    meet(warp, operation, &mine, at, [&] {
        Argument* lanes[LANES];
        for (int lane = 0; lane < LANES; lane++) lanes[lane] = static_cast<Argument*>(warp.threads[lane].argument);
        work(lanes);
    });
}

inline void require_all_lanes(const char* operation, uint32_t mask, const Location& at) {
    if (mask != 0xffffffff) fail_at(at, operation, " is for all lanes of a warp, not for those of the mask ", std::hex, mask);
}

/// __nanosleep: lets the other threads of the block and the other blocks run.
inline void nap(const Location& at) {
    Quiet quiet;
    if (worker->progress->failed) fail_at(at, "another block has failed");
    if (!worker->nap()) fail_at(at, "sleeps forever, as do all running blocks; a block may wait only for blocks with a lower ticket");
}

}   // namespace emulator
