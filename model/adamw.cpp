#include "model/adamw.cuh"

#include <algorithm>

std::vector<UpdateRange> update_ranges(const TensorList& list, size_t begin, size_t end, size_t longest) {
    std::vector<UpdateRange> ranges;
    for (const Tensor& t : list) {
        if (t.role == Role::frozen || t.role == Role::state) continue;
        const size_t last = std::min(t.slot.offset + t.slot.size, end);
        for (size_t at = std::max(t.slot.offset, begin); at < last; at += longest)
            ranges.push_back({at, std::min(at + longest, last), t.role, t.rate});
    }
    return ranges;
}

std::vector<NormSpan> norm_spans(const TensorList& list) {
    std::vector<NormSpan> spans;
    bool joins = false;   // whether only padding lies between the last span and the tensor
    for (const Tensor& t : list) {
        const bool counts = t.trained() || t.role == Role::statistic;
        const double weight = t.trained() ? 1 : 0;
        const size_t end = t.slot.offset + t.slot.size;
        if (counts && joins && spans.back().weight == weight) spans.back().end = end;
        else if (counts) spans.push_back({t.slot.offset, end, weight});
        joins = counts;
    }
    if (joins) spans.back().end = list.size();
    return spans;
}
