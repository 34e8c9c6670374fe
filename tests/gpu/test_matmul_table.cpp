// Algorithms of matrix products from a table (model/operations/matmul_table.h, matmul.cuh), and the tuning that makes it
// (dev/tuning.cuh). The emulator's algorithms add in orders of their own, so that bits tell which was taken; on a GPU they often
// give the same.
#include "dev/tuning.cuh"
#include "model/base/process.h"
#include "tests/catch.h"
#include "tests/gpu/device_array.h"
#include "tests/shards.h"

namespace {

constexpr int M = 24, N = 40, K = 264;
const Product PRODUCT{M, N, K, Transpose::no, Transpose::yes, CUDA_R_32F, CUDA_R_32F, false, Write::overwrite};

/// The products of this process take the algorithms of `choices`; as before when it ends.
struct WithTable {
    explicit WithTable(const std::map<std::string, MatmulChoice>& choices) {
        Matmuls::of_process().take_table({"it", "a GPU", 1, choices});
    }
    ~WithTable() { Matmuls::of_process().take_table({}); }
};

/// What the engine computes for PRODUCT, on the same numbers every time.
std::vector<double> compute() {
    std::mt19937 random(5);
    std::normal_distribution<double> normal;
    std::vector<double> a(M * K), b(N * K);
    for (auto* numbers : {&a, &b})
        for (double& x : *numbers) x = normal(random);
    const DeviceArray<float> on_a(a), on_b(b), c(M * N, NAN);
    const float* none = nullptr;
    matmul(test_gpu(), c.data(), Transpose::no, static_cast<const float*>(on_a.data()), Transpose::yes,
           static_cast<const float*>(on_b.data()), none, none, M, N, K);
    return c.numbers();
}

std::vector<MatmulProposal> proposals() {
    const Matmuls& matmuls = Matmuls::of_process();
    return MatmulPlan(matmuls.handle(), PRODUCT, matmuls.workspace().bytes).proposals(32);
}

const std::string GOOD = R"({"gpu": "A GPU", "cublaslt": 130002, "products": [
{"product": "p", "id": 66, "tile": 20, "split_k": 2, "reduction": 2, "swizzle": 1, "custom": 7, "stages": 5, "inner_shape": 4,
 "cluster_shape": 3, "microseconds": 8.5, "first": 9.5}]})";

std::string with(std::string text, const std::string& is, const std::string& becomes) {
    REQUIRE(text.find(is) != std::string::npos);
    return text.replace(text.find(is), is.size(), becomes);
}

}   // namespace

TEST_CASE("matmul table: a product takes the algorithm that the table has, and no other product does", "[gpu][linear]") {
    const WithTable none({});
    const std::vector<double> as_proposed = compute();
    int others = 0, taken = 0;
    for (const MatmulProposal& proposal : proposals()) {
        const MatmulAlgorithm attributes = attributes_of(proposal.found.algo);
        INFO("algorithm " << attributes[0] << ", tile " << attributes[1] << ", parts " << attributes[2]);
        const WithTable with_it({{describe(PRODUCT), {attributes, 1, 1}}});
        const std::vector<double> result = compute();
        if (!Matmuls::of_process().origins().refused.empty()) continue;   // as it may be: attributes are not all that there is
        taken++;
        others += bit_difference(result, as_proposed) != "";
        CHECK(difference(result, as_proposed, rounding<float>(K)) == "");
        CHECK(bit_difference(compute(), result) == "");
        CHECK(Matmuls::of_process().origins().tuned == std::vector<std::string>{describe(PRODUCT)});
        Matmuls::of_process().plan({M, N, K, Transpose::no, Transpose::yes, CUDA_R_32F, CUDA_R_32F, false, Write::add});
        CHECK(Matmuls::of_process().origins().tuned.size() == 1);
        CHECK(Matmuls::of_process().origins().proposed == std::vector<std::string>{describe(PRODUCT) + ", added"});
    }
    CHECK(taken > 0);
#ifdef EMULATED_GPU
    CHECK((proposals().size() == 6 && taken == 6));
    CHECK(others == 5);
#endif
}

TEST_CASE("matmul table: an algorithm that the library refuses is left to it, and named", "[gpu][linear]") {
    const WithTable none({});
    const std::vector<double> as_proposed = compute();
    const MatmulAlgorithm good = attributes_of(proposals().front().found.algo);
    MatmulAlgorithm no_such_tile = good, no_such_id = good;
    no_such_tile[1] = 60000, no_such_id[0] = 60000;
    std::vector<MatmulAlgorithm> all_bad = {no_such_tile, no_such_id};
#ifdef EMULATED_GPU   // an H200's library takes such a split, and computes what it computes without
    MatmulAlgorithm too_much_workspace = good;
    too_much_workspace[2] = 2 + uint32_t(Matmuls::of_process().workspace().bytes / (sizeof(float) * M * N));
    too_much_workspace[3] = 2;
    all_bad.push_back(too_much_workspace);
#endif
    for (const MatmulAlgorithm& bad : all_bad) {
        const WithTable with_it({{describe(PRODUCT), {bad, 1, 1}}});
        INFO("algorithm " << bad[0] << ", tile " << bad[1]);
        CHECK(bit_difference(compute(), as_proposed) == "");
        CHECK(Matmuls::of_process().origins().refused == std::vector<std::string>{describe(PRODUCT)});
        CHECK(Matmuls::of_process().origins().tuned.empty());
    }
    const Matmuls& matmuls = Matmuls::of_process();   // and for want of workspace alone
    MatmulAlgorithm split = good;
    split[1] = 15, split[2] = 4, split[3] = 2;
#ifdef EMULATED_GPU
    CHECK(MatmulPlan(matmuls.handle(), PRODUCT, 4 * M * N * sizeof(float)).take(split));
#endif
    CHECK(!MatmulPlan(matmuls.handle(), PRODUCT, 4 * M * N * sizeof(float) - 1).take(split));
}

TEST_CASE("matmul table: tuning times every proposal and finds one that can be made again", "[gpu][linear]") {
    Bench bench(test_gpu(), quick_effort());
    for (cudaDataType_t type : {CUDA_R_16BF, CUDA_R_32F})
        for (bool bias : {false, true}) {
            const Product product{M, N, K, Transpose::yes, Transpose::no, type, type, bias, bias ? Write::overwrite : Write::add};
            const Tuned tuned = tune(bench, product, 32);
            const Matmuls& matmuls = Matmuls::of_process();
            MatmulPlan plan(matmuls.handle(), product, matmuls.workspace().bytes);
            CHECK(tuned.timed + tuned.refused == int(plan.proposals(32).size()));
            CHECK((tuned.chosen && plan.take(tuned.choice.algorithm)));
            CHECK((tuned.choice.first > 0 && tuned.choice.microseconds > 0));
        }
    CHECK(tune(bench, PRODUCT, 2).timed <= 2);
}

TEST_CASE("matmul table: tuning refuses an algorithm that adds up parts of a sum in less than float32", "[gpu][linear]") {
    const Matmuls& matmuls = Matmuls::of_process();
    MatmulPlan plan(matmuls.handle(), PRODUCT, matmuls.workspace().bytes);
    ProductData data(test_gpu(), PRODUCT);
    for (uint32_t reduction : {1, 2, 4}) {
        const MatmulAlgorithm split{10, 15, 2, reduction};
#ifdef EMULATED_GPU   // whose algorithms have these numbers
        CHECK(plan.take(split) == (reduction != 1));
        CHECK(fits_table(plan, data, split) == (reduction == 2));
#else
        if (reduction != 2) CHECK(!fits_table(plan, data, split));
#endif
    }
}

TEST_CASE("matmul table: a file is read as it was written, and a broken one is refused in a sentence", "[gpu][linear]") {
    const TemporaryFolder folder;
    const std::string path = file_in(folder, "table.json");
    const MatmulChoice all_different{{66, 20, 2, 2, 1, 7, 5, 4, 3}, 8.5, 9.5};
    const MatmulTable table{path, "A \"GPU\"", 130002, {{"p", all_different}, {"q", {{1, 2, 1}, 1, 1}}}};
    write_matmul_table(table);
    const MatmulTable again = read_matmul_table(path);
    CHECK((again.path == path && again.gpu == table.gpu && again.cublaslt == 130002));
    REQUIRE(again.choices.size() == 2);
    CHECK(again.choices.at("p").algorithm == table.choices.at("p").algorithm);
    CHECK((again.choices.at("p").microseconds == 8.5 && again.choices.at("p").first == 9.5));
    CHECK(names_in(folder.path()) == std::vector<std::string>{"table.json"});

    write_text(path, GOOD);
    CHECK(read_matmul_table(path).choices.at("p").algorithm == table.choices.at("p").algorithm);
    const auto line = GOOD.substr(GOOD.find("{\"product"), GOOD.rfind(']') - GOOD.find("{\"product"));
    const std::pair<std::string, std::string> broken[] = {
        {"", "not valid JSON"},
        {GOOD.substr(0, 100), "not valid JSON"},
        {with(GOOD, "\"gpu\"", "\"GPU\""), "the key \"gpu\" is missing"},
        {with(GOOD, "130002", "\"13\""), "\"cublaslt\" is \"13\""},
        {with(GOOD, "[\n", "[1, "), "a product is 1"},
        {with(GOOD, "\"tile\"", "\"tiles\""), "product p: the key \"tile\" is missing"},
        {with(GOOD, "\"split_k\": 2", "\"split_k\": -2"), "\"split_k\" is -2"},
        {with(GOOD, "\"cluster_shape\": 3", "\"cluster_shape\": 65536"), "\"cluster_shape\" is 65536"},
        {with(GOOD, "\"reduction\": 2", "\"reduction\": 4"), "rounds parts of a sum"},
        {with(GOOD, line, line + ", " + line), "product p: is listed twice"},
    };
    for (const auto& [text, sentence] : broken) {
        write_text(path, text);
        const Error error = error_of([&] { read_matmul_table(path); });
        INFO(error.what());
        CHECK(error.code == Exit::usage);
        CHECK(says(error, {path, sentence, "--matmul-table none"}));
    }
    CHECK(says(error_of([&] { read_matmul_table(file_in(folder, "none")); }), {"none", "--matmul-table none"}));
    MatmulTable nowhere = table;
    nowhere.path = file_in(folder, "no/table.json");
    CHECK(says(error_of([&] { write_matmul_table(nowhere); }), {"no/table.json", "--out"}));
}

TEST_CASE("matmul table: of another GPU or library there is none, and a note", "[gpu][linear]") {
    const TemporaryFolder folder;
    const std::string path = file_in(folder, "table.json");
    write_text(path, GOOD);
    std::string note;
    CHECK(find_matmul_table(path, "A GPU", 130002, note).choices.size() == 1);
    CHECK(find_matmul_table("none", "A GPU", 130002, note).choices.empty());
    CHECK(find_matmul_table("auto", "A GPU", 130002, note).choices.empty());
    CHECK(note == "");
    for (const auto& [gpu, cublaslt] : {std::pair("B GPU", 130002), std::pair("A GPU", 130003)}) {
        CHECK(find_matmul_table(path, gpu, cublaslt, note).choices.empty());
        CHECK(note.find(path + " is for A GPU with cuBLASLt 130002, and this is " + gpu) == 0);
    }
    CHECK(matmul_table_name("NVIDIA H200", 130002) == "NVIDIA_H200_cublasLt_130002.json");

    const std::filesystem::path beside = program_folder() + "/model/matmul_tables";   // as programs find theirs
    std::filesystem::create_directories(beside);
    write_text((beside / "A_GPU_cublasLt_130002.json").string(), GOOD);
    CHECK(find_matmul_table("auto", "A GPU", 130002, note = "").choices.size() == 1);
    CHECK(note == "");
    CHECK(find_matmul_table("auto", "A GPU", 130003, note).choices.empty());
    CHECK(note.find("is for another version of cuBLASLt than 130003") != std::string::npos);
    CHECK(find_matmul_table("auto", "A G", 130002, note = "").choices.empty());
    CHECK(note == "");
    std::filesystem::remove(beside / "A_GPU_cublasLt_130002.json");
}
