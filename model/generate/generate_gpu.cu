// The GPU half of ./generate.
#include "model/generate/write_prompts.cuh"

bool write_on_gpu(const WritingJob& job, const std::string& device, const std::string& weights) {
    const bool may_not = device == "auto";
    const GpuCount found = count_gpus();
    if (found.count == 0 && may_not) {
        std::fprintf(stderr, "note: using the CPU: %s\n", found.why_none.c_str());
        return false;
    }
    if (found.count == 0 && !job.dry_run) fail(Exit::usage, "--device cuda: ", found.why_none, "; use --device cpu");
    const OpenGpu gpu(0, job.dry_run);
    if (may_not) std::fprintf(stderr, "note: using the GPU: %s\n", describe(gpu.device(), 0).c_str());
    Variants variants(named(job.config.variant, all_variants_on_gpu()), all_variants_on_gpu());
    variants.others.push_back(&on_gpu::causal);   // every program has causal
#ifdef GPU_FLOAT32
    if (weights == "fp32") {
        write_prompts<float>(gpu.device(), variants, job, Stored::as_computed);
        return true;
    }
#endif
    if (weights == "fp32") fail(Exit::usage, "--weights fp32 on a GPU: ", no_float32_kernels);
    write_prompts<bf16>(gpu.device(), variants, job, Stored::as_computed);
    return true;
}
