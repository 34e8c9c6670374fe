// Which of cuBLASLt's algorithms is the fastest for the products of a training step: the products that a step really computes, each
// timed with every algorithm that the library proposes, on cold caches. What dev/tune_matmul.cu makes a table of.
#pragma once
#include <functional>
#include <vector>

#include "dev/timing.cuh"
#include "dev/trainee.cuh"
#include "model/operations/matmul.cuh"

/// The products of a step of `variant`: forward, and backward where gradients are overwritten and where they are added to; and the
/// one that measures the ceiling. They are found by computing them, as training does.
inline std::vector<Product> products_of_a_step(GPU device, const Variant& variant, const Config& config, int B, int T) {
    Matmuls& matmuls = Matmuls::of_process();
    matmuls.take_table({});
    {
        Trainee trainee(device, variant, config, B, T);
        for (Write write : {Write::overwrite, Write::add}) trainee.launch_gradients(write);
        check(cudaStreamSynchronize(device.stream));
    }
    measure_matmul(device);
    return matmuls.products();
}

template <class Word>
__global__ void count_differences_kernel(int* count, const Word* x, const Word* y, size_t n) {
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
        if (x[i] != y[i]) atomicAdd(count, 1);
}

/// The factors, bias and result of a product, random numbers all.
class ProductData {
public:
    ProductData(GPU device, const Product& p)
        : device_(device), product_(p), numbers_(size_t(p.M) * p.N), a_(words(p.inputs, size_t(p.M) * p.K)),
          b_(words(p.inputs, size_t(p.K) * p.N)), bias_(words(p.output, size_t(p.N))), c_(words(p.output, numbers_)),
          again_(words(p.output, numbers_)), count_(1) {
        fill(a_, p.inputs, 1), fill(b_, p.inputs, 2), fill(bias_, p.output, 3), fill(c_, p.output, 4);
    }

    void run(MatmulPlan& plan) { run(plan, c_); }

    /// Whether the plan gives the same bits twice. No algorithm of the library's is known that does not; none may get into a table.
    bool repeats(MatmulPlan& plan) {
        for (Words* result : {&c_, &again_}) fill(*result, product_.output, 4), run(plan, *result);
        check(cudaMemsetAsync(count_.data, 0, sizeof(int), device_.stream));
        const uint32_t *first = c_.data, *second = again_.data;
        launch(device_, count_differences_kernel<uint32_t>, std::min<size_t>(blocks_for(c_.n, 256), 1024), 256, 0,
               reinterpret_cast<int*>(count_.data), first, second, c_.n);
        int differences = 0;
        to_host(device_, &differences, reinterpret_cast<const int*>(count_.data), 1);
        return differences == 0;
    }

private:
    /// Device memory in words of four bytes.
    struct Words {
        size_t n;
        uint32_t* data = nullptr;
        explicit Words(size_t n_) : n(n_) { check(cudaMalloc(&data, n * sizeof(uint32_t))); }
        Words(const Words&) = delete;
        ~Words() { cudaFree(data); }
    };
    static size_t words(cudaDataType_t type, size_t numbers) { return type == CUDA_R_32F ? numbers : (numbers + 1) / 2; }

    void fill(Words& to, cudaDataType_t type, uint64_t seed) {
        if (type == CUDA_R_32F) fill_random(device_, reinterpret_cast<float*>(to.data), to.n, seed);
        else fill_random(device_, reinterpret_cast<bf16*>(to.data), 2 * to.n, seed);
    }
    void run(MatmulPlan& plan, const Words& result) {
        plan.run(Matmuls::of_process().workspace(), device_.stream, result.data, a_.data, b_.data,
                 product_.bias ? bias_.data : nullptr, result.data);
    }

    GPU device_;
    Product product_;
    size_t numbers_;
    Words a_, b_, bias_, c_, again_, count_;
};

/// What has been found for one product.
struct Tuned {
    MatmulChoice choice;
    bool chosen = false;        // without it the product is left to the library
    int timed = 0, refused = 0;   // algorithms; refused: that may not get into a table
};

/// Whether a table may have the algorithm with these attributes: its reader accepts it, and it can be made again of them and repeats.
/// Then the plan has it.
inline bool fits_table(MatmulPlan& plan, ProductData& data, const MatmulAlgorithm& attributes) {
    return adds_in_float32(attributes) && plan.take(attributes) && data.repeats(plan);
}

/// The library's first proposal stays unless another is at least this much faster: noise should not change the bits of a run.
inline constexpr double WORTH_A_CHANGE = 0.99;

/// The fastest of up to `most` algorithms, each made again of its attributes, as training will make it.
inline Tuned tune(Bench& bench, const Product& product, int most) {
    const Matmuls& matmuls = Matmuls::of_process();
    MatmulPlan plan(matmuls.handle(), product, matmuls.workspace().bytes);
    ProductData data(bench.device(), product);
    auto microseconds = [&] { return 1e6 * bench.time([&] { data.run(plan); }).seconds; };
    const std::vector<MatmulProposal> proposals = plan.proposals(most);
    plan.take(proposals.front());
    Tuned found;
    found.choice.first = found.choice.microseconds = microseconds();
    for (size_t n = 0; n < proposals.size(); n++) {
        const MatmulAlgorithm attributes = attributes_of(proposals[n].found.algo);
        if (!fits_table(plan, data, attributes)) {
            found.refused++;
            continue;
        }
        const double time = microseconds();
        found.timed++;
        if (n > 0 && (time >= found.choice.microseconds || time >= WORTH_A_CHANGE * found.choice.first)) continue;
        found.choice.algorithm = attributes, found.choice.microseconds = time, found.chosen = true;
    }
    return found;
}
