// Clusters of tokens on the GPU, against the CPU in double and plain loops.
#include "tests/catch.h"
#include "tests/clusters.h"
#include "tests/gpu/on_gpu.h"

TEST_CASE("GPU clusters: what a token's rows find is averaged, and its gradient shared out", "[gpu][attention][clusters]") {
    for (int order = 0; order <= 4; order++) {
        const Order chosen(order);
        check_on_gpu_in_both_types(AverageRows{{2, 65, 2, 2, 32}, 128, 32});
        check_on_gpu_in_both_types(AverageRows{{1, 700, 1, 1, 32}, 300, 300});
        check_on_gpu_in_both_types(AverageRows{{1, 3, 2, 2, 64}, 40, 1});
    }
}

TEST_CASE("GPU clusters: log-sum-exps and entropies are averaged, pairs and tiles added up", "[gpu][attention][clusters]") {
    const AverageRows average{{2, 130, 2, 2, 32}, 200, 40};
    auto finite = [](auto numbers) {
        for (auto& number : numbers) number = std::isinf(number) ? 0 : number;
        return numbers;
    };
    const std::vector<float> numbers = random_numbers<float>(average.rows(), 9);
    const std::vector<float> once = average.statistics<float>(numbers, test_gpu());
    CHECK(difference(finite(once), finite(average.statistics<double>(in_double(numbers))), {1e-6, 1e-6}) == "");
    for (int order = 1; order <= 4; order++) {
        const Order chosen(order);
        CHECK(bit_difference(average.statistics<float>(numbers, test_gpu()), once) == "");
    }
}

TEST_CASE("GPU clusters: rows are sorted by cluster, and those of a document in a cluster are a group", "[gpu][attention][clusters][documents]") {
    for (int order = 0; order <= 4; order++) {
        const Order chosen(order);
        for (const int every : {0, 1, 3, 40})
            for (const ClusterShape& s : {ClusterShape{2, 65, 3, 8, 1, 4, 0}, {1, 600, 2, 8, 0, 7, 0}, {2, 1, 2, 8, 1, 3, 0}}) {
                INFO("T " << s.T << ", clusters " << s.clusters << ", documents of " << every);
                const SortByCluster sort{s, every};
                CHECK(sort.rows(test_gpu()) == sort.formula());
            }
    }
}

TEST_CASE("GPU clusters: every centroid takes the tokens with the greatest cosines, of equals the first",
          "[gpu][attention][clusters]") {
    for (int order = 0; order <= 4; order++) {
        const Order chosen(order);
        for (const ClusterShape& s : {ClusterShape{2, 65, 3, 8, 1, 4, 16}, {1, 600, 2, 8, 0, 7, 85}, {1, 40, 1, 8, 0, 1, 40},
                                      {2, 3, 2, 8, 1, 5, 1}, {1, 1, 2, 8, 1, 3, 1}}) {
            INFO("T " << s.T << ", clusters " << s.clusters << " of " << s.size);
            const TakeGreatest take{s};
            CHECK(take.rows(test_gpu()) == take.formula());
        }
    }
}
