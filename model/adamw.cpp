#include "model/adamw.cuh"

#include <algorithm>

std::vector<DecayRange> decay_ranges(const TensorList& list, size_t begin, size_t end, size_t longest) {
    std::vector<DecayRange> ranges;
    for (const Tensor& t : list) {
        const size_t last = std::min(t.slot.offset + t.slot.size, end);
        for (size_t at = std::max(t.slot.offset, begin); at < last; at += longest)
            ranges.push_back({at, std::min(at + longest, last), t.decay == Decay::yes});
    }
    return ranges;
}
