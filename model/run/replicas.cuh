// Detection of corrupted memory: copies that every rank keeps are compared with each other, and parts that only one rank keeps (ZeRO-1)
// with their own checksums of the step before. Otherwise training would continue after a flipped bit and exit with code 0.
#pragma once
#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "model/base/hash.h"
#include "model/gpt.h"
#include "model/operations/checksum.cuh"
#include "model/ranks/ranks.h"

/// Pieces of a stored array, numbered as in a buffer of the whole model, and the tensor of each.
struct TensorPieces {
    std::vector<Piece> pieces;
    std::vector<size_t> tensors;   // their indices in the list

    void add(size_t tensor, Piece piece) {
        constexpr size_t LONGEST = size_t(1) << 16;   // enough pieces to fill a GPU
        for (; piece.begin < piece.end; piece.begin += LONGEST, piece.number += LONGEST) {
            pieces.push_back({piece.begin, std::min(piece.begin + LONGEST, piece.end), piece.number});
            tensors.push_back(tensor);
        }
    }

    void add_up(const uint64_t* sums, uint64_t* of_tensors) const {
        for (size_t p = 0; p < pieces.size(); p++) of_tensors[tensors[p]] += sums[p];
    }
};

/// Every tensor's elements in the storage of this rank alone.
inline TensorPieces pieces_of(const TensorList& list, const std::vector<HeldSpan>& storage) {
    TensorPieces all;
    size_t number = 0;
    for (const Tensor& tensor : list) {
        for (const HeldSpan& own : storage) {
            const size_t begin = std::max(own.begin, tensor.slot.offset), end = std::min(own.end, tensor.slot.offset + tensor.slot.size);
            if (begin < end) all.add(number, {begin - own.begin + own.held, end - own.begin + own.held, begin});
        }
        number++;
    }
    return all;
}

/// Every tensor's elements in a flat buffer.
inline TensorPieces pieces_of(const TensorList& list) { return pieces_of(list, {{0, list.size(), 0}}); }

/// Checksums of one rank's weights, moments and master weights, piece by piece.
template <class Device, class X>
class ReplicaCheck {
public:
    /// Precondition: gpt.allocate().
    ReplicaCheck(Device device, const GPT<Device, X>& gpt)
        : gpt_(gpt), whole_(pieces_of(gpt.net.tensors)), part_(pieces_of(gpt.net.tensors, owned_spans(gpt.shards))),
          second_(pieces_of(gpt.net.tensors, gpt.second_moments())), whole_sums_(device, whole_.pieces), part_sums_(device, part_.pieces),
          second_sums_(device, second_.pieces) {
        for (const Tensor& tensor : gpt.net.tensors) names_.push_back(tensor.name);
    }

    /// Every rank must call it. Ends the job with Exit::rank unless the ranks agree in every bit that all of them keep: the
    /// weights, and without ZeRO-1 the moments and master weights. Names the tensor, and the rank that differs from the others.
    void require_equal(Device device, Ranks& ranks, int64_t step) {
        if (!gpt_.sharded()) remembered_ = all_sums(device);
        const Difference found = difference(ranks, gpt_.sharded() ? whole_sums_.of(device, gpt_.weights) : remembered_);
        if (found.sentence.empty()) return;
        ranks.fail_together(Exit::rank, found.sentence + " after step " + std::to_string(step) +
                                            ", where all ranks must have the same bits: the memory or the arithmetic of one of them, "
                                            "or of its GPU, is faulty");
    }

    /// The same before the first step, where weights come from this rank's `folder`, or from --seed if that is empty.
    /// Exit::checkpoint if folders differ.
    void require_equal_start(Device device, Ranks& ranks, const std::string& folder) const {
        const Difference found = difference(ranks, gpt_.sharded() || !gpt_.m ? whole_sums_.of(device, gpt_.weights) : all_sums(device));
        if (found.sentence.empty()) return;
        const std::string other = ranks.broadcast(folder, found.odd), usual = ranks.broadcast(folder, found.usual);
        if (usual.empty())
            ranks.fail_together(Exit::rank, found.sentence + " as they are initialised from --seed: their machines compute "
                                            "differently, or the memory of one of them is faulty");
        ranks.fail_together(Exit::checkpoint, found.sentence + ": its folder is " + other + ", that of rank " +
                                                  std::to_string(found.usual) + " is " + usual +
                                                  ", and all ranks must start from the same bits; give them copies of one folder");
    }

    /// The sums of the gradients, piece by piece. Precondition: they are of one micro-step's rows.
    std::vector<uint64_t> gradient_sums(Device device) const { return whole_sums_.of(device, gpt_.gradients); }

    /// Every rank must call it, with the sums for its own rows and for those of the next rank (and rank 0's on the last). Ends the job
    /// unless both ranks have computed the same bits. Names the tensor. `check_memory` is called first: if weights have changed since
    /// they were compared, it ends the job and names them.
    void require_repeated(Ranks& ranks, int64_t step, const std::vector<uint64_t>& own, const std::vector<uint64_t>& of_next,
                          const std::function<void()>& check_memory) const {
        const int size = ranks.size();
        const std::vector<uint64_t> firsts = hashes_of_ranks(ranks, own), seconds = hashes_of_ranks(ranks, of_next);
        for (int r = 0; r < size; r++) {
            const int other = (r + 1) % size;
            if (seconds[size_t(r)] == firsts[size_t(other)]) continue;
            check_memory();
            std::vector<uint64_t> first = own, second = of_next;
            ranks.broadcast(first.data(), first.size() * sizeof first[0], other);
            ranks.broadcast(second.data(), second.size() * sizeof second[0], r);
            const size_t at = size_t(std::mismatch(first.begin(), first.end(), second.begin()).first - first.begin());
            ranks.fail_together(Exit::rank, "ranks " + std::to_string(other) + " and " + std::to_string(r) +
                                                " compute different gradients of " + names_[whole_.tensors[at]] +
                                                " from the same rows after step " + std::to_string(step) +
                                                ": the memory or the arithmetic of one of them is faulty");
        }
    }

    /// Call after the update of a step, or after loading. With ZeRO-1 stores the checksums of this rank's parts; require_equal() stores the
    /// replicas'.
    void remember_update(Device device) {
        remembered_.clear();
        if (gpt_.sharded()) remembered_ = all_sums(device);
    }

    /// Exit::rank, naming rank and tensor, if anything has changed since its checksum was stored. Call before the next update: with ZeRO-1
    /// that would spread the change to all ranks, or hide it.
    void require_unchanged(Device device, const Ranks& ranks, int64_t step) const {
        if (remembered_.empty()) return;
        const std::vector<uint64_t> now = all_sums(device);
        const auto [was, is] = std::mismatch(remembered_.begin(), remembered_.end(), now.begin());
        if (was == remembered_.end()) return;
        fail(Exit::rank, "on rank ", ranks.rank(), ", ", name_of(size_t(was - remembered_.begin())), " have changed since the update ",
             "of step ", step - 1, ", and nothing writes them in between: the memory of this rank, or of its GPU, is faulty");
    }

    /// Every rank must call it, before a save. Returns (3, tensors) the checksums of each tensor in the arrays of a checkpoint: weights in
    /// full precision and both moments of all ranks. They are the stored checksums, if there are any since the update.
    std::vector<uint64_t> sums_to_save(Device device, Ranks& ranks) const {
        const std::vector<uint64_t> sums = remembered_.empty() ? all_sums(device) : remembered_;
        const size_t whole = whole_.pieces.size(), part = part_.pieces.size(), second = second_.pieces.size(), n = names_.size();
        std::vector<uint64_t> mine(3 * n);
        if (gpt_.keeps_master()) part_.add_up(sums.data() + whole + part + second, &mine[0]);
        else if (ranks.first()) whole_.add_up(sums.data(), &mine[0]);
        part_.add_up(sums.data() + whole, &mine[n]);
        second_.add_up(sums.data() + whole + part, &mine[2 * n]);
        if (!gpt_.sharded()) return mine;
        std::vector<uint64_t> all(mine.size() * size_t(ranks.size()));
        std::copy(mine.begin(), mine.end(), all.begin() + ptrdiff_t(mine.size()) * ranks.rank());
        ranks.all_gather(all.data(), mine.size() * sizeof mine[0]);
        std::fill(mine.begin(), mine.end(), 0);
        for (size_t i = 0; i < all.size(); i++) mine[i % mine.size()] += all[i];
        return mine;
    }

    /// On rank 0, when the files of a checkpoint have been written from these flat buffers in host memory, and have no name yet:
    /// Exit::rank, naming the tensor, unless their sums are still those of sums_to_save().
    void require_saved(const std::vector<uint64_t>& sums, const float* weights, const float* m, const float* v) const {
        const Checksums<CPU> on_host(CPU{}, whole_.pieces);
        std::vector<uint64_t> now(sums.size());
        uint64_t* of_array = now.data();
        for (const float* array : {weights, m, v}) whole_.add_up(on_host.of(CPU{}, array).data(), of_array), of_array += names_.size();
        const size_t at = size_t(std::mismatch(sums.begin(), sums.end(), now.begin()).first - sums.begin()), n = names_.size();
        if (at == sums.size()) return;
        const char* const arrays[] = {"the weights of ", "the first moments of ", "the second moments of "};
        fail(Exit::rank, "on rank 0, ", arrays[at / n], names_[at % n],
             " changed while a checkpoint was saved, and nothing writes them then: the memory of this rank, or of a GPU, is "
             "faulty; the checkpoint was deleted");
    }

private:
    /// "rank 3 differs from rank 0 in the weights of NAME", with the lowest rank outside the majority; "" if all agree.
    struct Difference {
        std::string sentence;
        int usual = 0, odd = -1;
    };
    Difference difference(Ranks& ranks, const std::vector<uint64_t>& mine) const {
        if (ranks.size() == 1) return {};
        const auto [usual, odd] = usual_and_odd(hashes_of_ranks(ranks, mine));
        if (odd < 0) return {};
        std::vector<uint64_t> right = mine, wrong = mine;
        ranks.broadcast(right.data(), right.size() * sizeof right[0], usual);
        ranks.broadcast(wrong.data(), wrong.size() * sizeof wrong[0], odd);
        const size_t at = size_t(std::mismatch(right.begin(), right.end(), wrong.begin()).first - right.begin());
        return {"rank " + std::to_string(odd) + " differs from rank " + std::to_string(usual) + " in " + name_of(at), usual, odd};
    }

    /// (ranks) Every rank's hash of its sums, on every rank.
    static std::vector<uint64_t> hashes_of_ranks(Ranks& ranks, const std::vector<uint64_t>& sums) {
        return ranks.gathered(xxh3(sums.data(), sums.size() * sizeof sums[0]));
    }
    static void append(std::vector<uint64_t>& to, const std::vector<uint64_t>& more) { to.insert(to.end(), more.begin(), more.end()); }

    /// Sums of the weights, this rank's part of both moments and, if any, the master weights. Without ZeRO-1 the part is the whole.
    std::vector<uint64_t> all_sums(Device device) const {
        std::vector<uint64_t> sums = whole_sums_.of(device, gpt_.weights);
        append(sums, part_sums_.of(device, gpt_.m));
        append(sums, second_sums_.of(device, gpt_.v));
        if (gpt_.keeps_master()) append(sums, part_sums_.of(device, gpt_.master));
        return sums;
    }

    /// The array and tensor of sum number `at` of all_sums(): "the weights of NAME", "the first moments of NAME", ...
    std::string name_of(size_t at) const {
        for (const auto& [what, pieces] : {std::pair("the weights of ", &whole_), {"the first moments of ", &part_},
                                           {"the second moments of ", &second_}}) {
            if (at < pieces->tensors.size()) return what + names_[pieces->tensors[at]];
            at -= pieces->tensors.size();
        }
        return "the master weights of " + names_[part_.tensors[at]];
    }

    /// The lowest rank that has the most frequent hash, and the lowest that has another, -1 if all have it.
    static std::pair<int, int> usual_and_odd(const std::vector<uint64_t>& hashes) {
        std::map<uint64_t, int> count;
        for (uint64_t hash : hashes) count[hash]++;
        int usual = 0;
        for (int r = 1; r < int(hashes.size()); r++)
            if (count[hashes[r]] > count[hashes[usual]]) usual = r;
        for (int r = 0; r < int(hashes.size()); r++)
            if (hashes[r] != hashes[usual]) return {usual, r};
        return {usual, -1};
    }

    const GPT<Device, X>& gpt_;
    TensorPieces whole_, part_, second_;   // of a flat buffer, of this rank's first moments and master weights, of its second moments
    std::vector<std::string> names_;   // of the tensors, in the list's order
    Checksums<Device> whole_sums_, part_sums_, second_sums_;
    std::vector<uint64_t> remembered_;   // all_sums(), if taken since the update
};
