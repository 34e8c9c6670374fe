// Streams, events and graphs. Work given to a stream is queued. A GPU may run it at once or much later, so the seed chooses:
//
//   seed 0      at once: program order, for debugging
//   seed 1      as late as possible: only when something waits for it
//   seeds 2, 3  every second stream at once, the others late: streams run far ahead of each other
//   from 4 on   random
//
// A program that reads a result too early, reuses a buffer too early or lacks a wait between streams gives wrong results under one of
// them.
#pragma once
#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "device_memory.h"
#include "runtime_types.h"

struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;

namespace emulator {

using Work = std::function<void()>;
using Clock = std::chrono::steady_clock;

/// All work given to `stream` up to operation `number`.
struct Point {
    CUstream_st* stream = nullptr;
    uint64_t number = 0;
};

struct Operation {
    uint64_t number;            // counts the operations of all streams
    Location at;                // the line that enqueued it
    Work work;
    std::vector<Point> after;   // operations that must be done before
};

/// One operation of a graph, and the nodes before it.
struct Node {
    Location at;
    Work work;
    std::vector<size_t> after;
};

}   // namespace emulator

struct CUstream_st {
    int index = 0;          // 0: the default stream, nullptr in programs
    bool alive = true;
    bool blocking = true;   // ordered with stream 0
    std::deque<emulator::Operation> queue;
    uint64_t last = 0;      // number of the newest operation
    uint64_t done = 0;      // number of the newest operation done

    CUgraph_st* capture = nullptr;   // if not null, takes operations instead of the queue
    std::vector<size_t> heads;       // nodes before the next captured operation
};

struct CUevent_st {
    bool alive = true;
    emulator::Point point;   // the last recording
    emulator::Clock::time_point time;
    CUgraph_st* capture = nullptr;
    std::vector<size_t> heads;
};

struct CUgraph_st {
    std::vector<emulator::Node> nodes;
    bool host_may_wait = false;   // cudaStreamCaptureModeRelaxed
};

struct CUgraphExec_st {
    std::shared_ptr<const std::vector<emulator::Node>> nodes;
};

namespace emulator {

/// The state of the emulated GPUs. One host thread at a time is inside; a host thread that waits for work runs it.
class Runtime {
public:
    std::recursive_mutex mutex;
    DeviceMemory memory;
    uint64_t works = 0;                 // run by streams so far
    cudaError_t broken = cudaSuccess;   // result of every call since the GPU broke

    // ---- streams
    CUstream_st& stream(cudaStream_t handle, const Location& at) {
        if (!handle) return streams_.front();
        if (!handle->alive) throw Error(place(at) + ": uses a stream that was destroyed");
        return *handle;
    }

    CUstream_st& create_stream(bool blocking) {
        for (CUstream_st& stream : streams_) {
            if (stream.alive) continue;
            stream.alive = true;
            stream.blocking = blocking;
            return stream;
        }
        CUstream_st& stream = streams_.emplace_back();
        stream.index = int(streams_.size()) - 1;
        stream.blocking = blocking;
        return stream;
    }

    CUevent_st& create_event() {
        auto unused = std::find_if(events_.begin(), events_.end(), [](const CUevent_st& event) { return !event.alive; });
        CUevent_st& event = unused == events_.end() ? events_.emplace_back() : *unused;
        event = {};
        return event;
    }

    /// Enqueues `work` on the stream, after its present work. Returns the operation's number.
    uint64_t enqueue(CUstream_st& stream, const Location& at, Work work, std::vector<Point> after = {}) {
        if (busy_) throw Error(place(at) + ": the CUDA runtime must not be called by work of a stream (a kernel, a host function)");
        if (stream.capture) {
            capture(stream, at, std::move(work));
            return 0;
        }
        for (CUstream_st& other : streams_) {   // stream 0 is ordered with all blocking streams
            if (stream.index && (other.index || !stream.blocking)) continue;
            if (!stream.index && !other.blocking) continue;
            if (other.capture) throw Error(place(at) + ": uses stream 0 while a blocking stream is being captured");
            after.push_back({&other, other.last});
        }
        stream.last = ++operations_;
        stream.queue.push_back({stream.last, at, std::move(work), std::move(after)});
        advance(stream);
        return stream.last;
    }

    void run_until(Point point) {
        CUstream_st& stream = *point.stream;
        while (!stream.queue.empty() && stream.queue.front().number <= point.number) run_first(stream);
    }
    void run_until_empty(CUstream_st& stream) { run_until({&stream, stream.last}); }

    void run_all() {
        for (CUstream_st& stream : streams_) run_until_empty(stream);
    }

    bool happened(const Point& point) const { return !point.stream || point.stream->done >= point.number; }

    // ---- graphs
    void begin_capture(CUstream_st& stream, bool host_may_wait, const Location& at) {
        if (!stream.index) throw Error(place(at) + ": stream 0 cannot be captured");
        if (stream.capture) throw Error(place(at) + ": the stream is already being captured");
        stream.capture = new CUgraph_st{{}, host_may_wait};
        stream.heads.clear();
        captures_.insert(stream.capture);
    }

    CUgraph_st* end_capture(CUstream_st& stream, const Location& at) {
        CUgraph_st* graph = stream.capture;
        if (!graph) throw Error(place(at) + ": the stream is not being captured");
        std::set<size_t> ends;   // nodes that no other node comes after
        for (size_t n = 0; n < graph->nodes.size(); n++) {
            ends.insert(n);
            for (size_t before : graph->nodes[n].after) ends.erase(before);
        }
        for (size_t head : stream.heads) ends.erase(head);
        captures_.erase(graph);
        for (CUstream_st& branch : streams_)
            if (branch.capture == graph) branch.capture = nullptr, branch.heads.clear();
        if (ends.empty()) return graph;
        delete graph;
        throw Error(place(at) + ": the capture ends before a stream that was forked from it is joined");
    }

    /// For calls that wait for the device or change its memory, which a capture forbids.
    void require_no_capture(const Location& at) const {
        for (const CUgraph_st* graph : captures_)
            if (!graph->host_may_wait) throw Error(place(at) + ": not allowed while a stream is being captured");
    }

    /// Runs a graph's operations in one of the orders that its edges allow.
    void replay(const std::vector<Node>& nodes) {
        std::vector<std::vector<size_t>> next(nodes.size());
        std::vector<size_t> missing(nodes.size()), ready;
        for (size_t n = 0; n < nodes.size(); n++) {
            for (size_t before : nodes[n].after) next[before].push_back(n);
            missing[n] = nodes[n].after.size();
        }
        for (size_t n = nodes.size(); n-- > 0;)
            if (missing[n] == 0) ready.push_back(n);
        while (!ready.empty()) {
            const size_t n = take(ready);
            do_work(nodes[n].at, nodes[n].work);
            for (size_t after : next[n])
                if (--missing[after] == 0) ready.push_back(after);
        }
    }

    Runtime() { streams_.emplace_back(); }
    Runtime(const Runtime&) = delete;

private:
    void capture(CUstream_st& stream, const Location& at, Work work) {
        std::vector<Node>& nodes = stream.capture->nodes;
        nodes.push_back({at, std::move(work), stream.heads});
        stream.heads = {nodes.size() - 1};
    }

    /// Seed 0: in the order of the capture. Seed 1: the newest first. Others: random.
    size_t take(std::vector<size_t>& ready) {
        const uint64_t seed = options().seed;
        auto chosen = seed == 0 ? std::min_element(ready.begin(), ready.end())
                    : seed == 1 ? std::max_element(ready.begin(), ready.end())
                                : ready.begin() + long(random_() % ready.size());
        const size_t node = *chosen;
        ready.erase(chosen);
        return node;
    }

    void run_first(CUstream_st& stream) {
        Operation operation = std::move(stream.queue.front());
        stream.queue.pop_front();
        for (const Point& point : operation.after) run_until(point);
        do_work(operation.at, operation.work);
        stream.done = operation.number;
    }

    /// After an error all queued work is dropped, and a broken GPU runs nothing.
    void do_work(const Location& at, const Work& work) {
        if (++works == options().breaking_work) broken = cudaError_t(options().breaks_with);
        if (broken != cudaSuccess) return;
        const bool outermost = !busy_;
        busy_ = true;
        try {
            DeviceMemory::Access access(memory);
            work();
            memory.check_all();
        } catch (...) {
            busy_ = false;
            for (CUstream_st& stream : streams_) stream.queue.clear(), stream.done = stream.last;
            rethrow(at);
        }
        busy_ = !outermost;
    }

    /// Rethrows what do_work() caught. Damaged zones become an error that names the preceding operation.
    [[noreturn]] static void rethrow(const Location& at) {
        try {
            throw;
        } catch (const Damage& damage) {
            throw Error(join("the work that ", function_at(at), " (", place(at), ") enqueued made ", damage.what()));
        }
    }

    /// Runs some work, by seed, after `stream` got an operation.
    void advance(CUstream_st& stream) {
        const uint64_t seed = options().seed;
        if (seed == 1) return;
        if (seed == 0 || (seed <= 3 && (uint64_t(stream.index) + seed) % 2 == 0)) return run_until_empty(stream);
        if (seed <= 3) return;
        while (random_() % 2) {
            CUstream_st& any = streams_[random_() % streams_.size()];
            if (!any.queue.empty()) run_first(any);
        }
    }

    std::deque<CUstream_st> streams_;   // never removed: destroyed ones are reused
    std::deque<CUevent_st> events_;
    std::set<CUgraph_st*> captures_;
    uint64_t operations_ = 0;
    bool busy_ = false;
    Random random_{options().seed};
};

/// Never destroyed: destructors of static objects may still free memory.
inline Runtime& runtime() {
    static Runtime& only = *new Runtime;
    return only;
}

/// Enqueues any work on a stream: for launches, and for emulated libraries.
inline void enqueue(cudaStream_t handle, Work work, const Location& at = Location::current()) {
    std::lock_guard inside(runtime().mutex);
    runtime().enqueue(runtime().stream(handle, at), at, std::move(work));
}

}   // namespace emulator
