// Times cuBLASLt's algorithms for the matrix products of a model's training step, and writes the fastest of each into a table, from
// which training takes them (--matmul-table; model/operations/matmul_table.h):
//   make VARIANTS="causal asga" build/dev/tune_matmul && build/dev/tune_matmul --model qwen2.5-0.5b --batch-size 32
// Products are the same for most variants; those that read the block's input add one, nsa several. Another model of the same GPU
// and library goes into the same file: what is there of other products stays.
#include <filesystem>

#include "dev/tuning.cuh"
#include "model/base/disk.h"
#include "model/device/machine.h"

namespace {

struct Options : StepOptions {
    std::string out;
    std::vector<std::string> variants = {"causal"};
    int candidates = 32, repeats = 20;
    bool quick = false;
};

bool parse(int argc, char** argv, Options& o) {
    CLI::App app("Times cuBLASLt's algorithms for the matrix products of a training step, and writes a table of the fastest.");
    app.option_defaults()->always_capture_default();
    o.add_to(app);
    app.add_option("--variants", o.variants, "whose products");
    app.add_option("--candidates", o.candidates, "algorithms to time for each product, at most")->transform(whole_number_from(1, 1000));
    app.add_option("--repeats", o.repeats, "runs of which the median counts")->transform(whole_number_from(1, 10000));
    app.add_option("--out", o.out, "the table; without it the one that training finds, in model/matmul_tables");
    app.add_flag("--quick", o.quick, "time everything once to see that it runs; the table means nothing");
    return parse_options(app, argc, argv);
}

/// The table to add to: what is in the file, if it is there.
MatmulTable table_at(const std::string& out) {
    const std::string gpu = gpu_properties().name;
    const auto cublaslt = int64_t(cublasLtGetVersion());
    const std::string path = out.empty() ? "model/matmul_tables/" + matmul_table_name(gpu, cublaslt) : out;
    if (!path_exists(path)) {
        if (out.empty()) std::filesystem::create_directories("model/matmul_tables");
        return {path, gpu, cublaslt, {}};
    }
    MatmulTable table = read_matmul_table(path);
    if (table.gpu != gpu || table.cublaslt != cublaslt)
        fail(Exit::usage, path, ": is for ", table.gpu, " with cuBLASLt ", table.cublaslt, ", and this is ", gpu, " with ",
             cublaslt, "; choose another --out");
    return table;
}

void run(const Options& o) {
    const OpenGpu gpu(0, false);
    MatmulTable table = table_at(o.out);
    const Effort effort = effort_of(o.repeats, o.quick);
    Bench bench(gpu.device(), effort);
    const Config config = config_of(o.model);
    std::vector<Product> products;
    for (const std::string& name : o.variants)
        for (const Product& p : products_of_a_step(gpu.device(), named(name, all_variants_on_gpu()), config, o.B, o.T))
            if (std::find(products.begin(), products.end(), p) == products.end()) products.push_back(p);

    std::printf("%s, cuBLASLt %lld; medians of %d runs on cold caches\n\n"
                "| product | timed | refused | library's first | fastest | |\n|---|---|---|---|---|---|\n",
                table.gpu.c_str(), static_cast<long long>(table.cublaslt), effort.repeats);
    for (const Product& product : products) {
        const Tuned tuned = tune(bench, product, o.candidates);
        const std::string what = describe(product);
        std::printf("| %s | %d | %d | %.1f us | %.1f us | %.3f |\n", what.c_str(), tuned.timed, tuned.refused, tuned.choice.first,
                    tuned.choice.microseconds, tuned.choice.microseconds / tuned.choice.first);
        std::fflush(stdout);
        if (tuned.chosen) table.choices[what] = tuned.choice;
        write_matmul_table(table);   // each time: an interruption costs what has not been timed
    }
    std::printf("\n%s: %zu products\n", table.path.c_str(), table.choices.size());
}

}   // namespace

int main(int argc, char** argv) {
    choose_blas_kernels(argv);
    return run_program("tune_matmul", [&] {
        Options options;
        if (parse(argc, argv, options)) run(options);
    });
}
