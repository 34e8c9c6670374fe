// A kernel to step through (README.md describes it): every block sums one row of a matrix.
#include <cstdio>
#include <numeric>
#include <vector>

#include "model/device/gpu.cuh"

__global__ void row_sums(float* out, const float* in, int columns) {
    float* parts = &dynamic_shared<float>();   // (warps)
    float sum = 0;
    for (int c = int(threadIdx.x); c < columns; c += int(blockDim.x)) sum += in[blockIdx.x * columns + c];
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (unsigned warp = 1; warp < blockDim.x / WARP; warp++) sum += parts[warp];
    out[blockIdx.x] = sum;
}

int main() {
    const int rows = 3, columns = 1000, threads = 128;
    std::vector<float> matrix(rows * columns), sums(rows);
    std::iota(matrix.begin(), matrix.end(), 0.0f);

    float *in, *out;
    check(cudaMalloc(&in, matrix.size() * sizeof(float)));
    check(cudaMalloc(&out, sums.size() * sizeof(float)));
    check(cudaMemcpy(in, matrix.data(), matrix.size() * sizeof(float), cudaMemcpyHostToDevice));
    launch(GPU{}, row_sums, Grid(rows), threads, threads / WARP * sizeof(float), out, in, columns);
    check(cudaMemcpy(sums.data(), out, sums.size() * sizeof(float), cudaMemcpyDeviceToHost));
    for (const float sum : sums) std::printf("%.0f\n", sum);
    check(cudaFree(in));
    check(cudaFree(out));
}
