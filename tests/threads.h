// The number of OpenMP threads, set until the end of a block.
#pragma once
#include <omp.h>

class Threads {
public:
    explicit Threads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
    ~Threads() { omp_set_num_threads(before_); }
    Threads(const Threads&) = delete;
    Threads& operator=(const Threads&) = delete;

private:
    int before_;
};
