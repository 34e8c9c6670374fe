#include "data/pipeline.h"

#include <chrono>
#include <utility>

Pipeline::Pipeline(int threads, size_t room, Read read, Encode encode, std::atomic<bool>& stop)
    : room_(room), read_(std::move(read)), encode_(std::move(encode)), stop_(stop) {
    threads_.emplace_back([this] { read_all(); });
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { encode_all(); });
}

Pipeline::~Pipeline() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

// False when the work is to end.
bool Pipeline::put(std::unique_ptr<TextBatch> batch, bool done) {
    std::unique_lock lock(mutex_);
    const size_t bytes = batch->text.size();
    changed_.wait(lock, [&] { return stop_ || in_order_.empty() || bytes_ + bytes <= room_; });
    if (stop_) return false;
    bytes_ += bytes;
    in_order_.push_back(std::make_shared<Slot>(Slot{std::move(batch), done}));
    if (!done) to_encode_.push_back(in_order_.back());
    changed_.notify_all();
    return true;
}

void Pipeline::read_all() {
    bool more = true;
    while (more) {
        auto batch = std::make_unique<TextBatch>();
        try {
            more = read_(*batch);
        } catch (...) {
            batch->error = std::current_exception();
        }
        const bool failed = batch->error != nullptr;
        more = more && put(std::move(batch), failed) && !failed;
    }
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
}

void Pipeline::encode_all() {
    while (true) {
        std::shared_ptr<Slot> slot;
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] { return stop_ || ended_ || !to_encode_.empty(); });
            if (stop_ || to_encode_.empty()) return;
            slot = std::move(to_encode_.front());
            to_encode_.pop_front();
        }
        try {
            encode_(*slot->batch);
        } catch (...) {
            slot->batch->error = std::current_exception();
        }
        const std::lock_guard lock(mutex_);
        slot->done = true;
        changed_.notify_all();
    }
}

std::unique_ptr<TextBatch> Pipeline::next(const Tick& tick) {
    std::unique_ptr<TextBatch> batch;
    while (!batch) {
        tick();
        std::unique_lock lock(mutex_);
        const auto ready = [&] { return in_order_.empty() ? ended_ : in_order_.front()->done; };
        if (!changed_.wait_for(lock, std::chrono::milliseconds(100), ready)) continue;
        if (in_order_.empty()) return nullptr;
        batch = std::move(in_order_.front()->batch);
        in_order_.pop_front();
        bytes_ -= batch->text.size();
        changed_.notify_all();
    }
    if (batch->error) std::rethrow_exception(batch->error);
    return batch;
}
