// ./generate without a GPU half. Programs with one are linked with generate_gpu.cu instead.
#include "model/generate/write_prompts.cuh"

bool write_on_gpu(const WritingJob&, const std::string& device, const std::string&) {
    if (device == "auto") return false;
    fail(Exit::usage, "--device cuda: this program was built without CUDA; install nvcc, then build again");
}
