// Clusters of one size (attention/masks/balanced_clusters.cuh) from cosines of which many are equal, on both devices and by definition.
#include <cmath>

#include "attention/masks/balanced_clusters.cuh"
#include "tests/gpu/on_gpu.h"

namespace {

struct GreatestTokens {
    ClusterShape s;
    std::vector<float> cosines() const {
        std::vector<float> all = random_numbers<float>(s.cosines(s.B, s.local, 0), 3);
        for (float& cosine : all) cosine = std::round(8 * cosine) / 8;   // -0 and 0 are equal too
        return all;
    }

    /// The token of each row (B, NH, R), -1 in padding.
    std::vector<int> formula() const {
        const std::vector<float> all = cosines();
        std::vector<int> tokens(s.rows_of(s.B, 0), -1);
        for (int b = 0; b < s.B; b++)
            for (int h = 0; h < s.NH; h++) {
                int* row = &tokens[s.rows_of(b, h)];
                for (int t = 0; h < s.local && t < s.T; t++) *row++ = t;
                for (int c = 0; h >= s.local && c < s.clusters; c++) {
                    const float* mine = &all[s.cosines(b, h, c)];
                    for (int t = 0; t < s.T; t++) {
                        int nearer = 0;
                        for (int u = 0; u < s.T; u++) nearer += mine[u] > mine[t] || (mine[u] == mine[t] && u < t);
                        if (nearer < s.size) *row++ = t;
                    }
                }
            }
        return tokens;
    }
    template <class Device>
    std::vector<int> tokens(Device device) const {
        On<Device, float> scores(cosines());
        const std::vector<int> used(s.rows_of(s.B, 0), 99);
        On<Device, int> tokens(used), queries(used), keys(used), ends(std::vector<int>(s.ends_of(s.B, 0), 99));
        const ClusterRows rows{tokens.data(), queries.data(), keys.data(), ends.data()};
        sort_by_cluster(device, rows, nullptr, s);
        take_greatest(device, rows, scores.data(), s);
        return tokens.numbers();
    }
};

}   // namespace

TEST_CASE("clusters: every centroid takes the tokens with the greatest cosines, of equals the first", "[gpu][attention][clusters]") {
    for (const ClusterShape& s : {ClusterShape{2, 65, 3, 8, 1, 4, 16}, {1, 600, 2, 8, 0, 7, 85}, {1, 40, 1, 8, 0, 1, 40},
                                  {2, 3, 2, 8, 1, 5, 1}, {1, 1, 2, 8, 1, 3, 1}}) {
        INFO("T " << s.T << ", clusters " << s.clusters << " of " << s.size);
        const GreatestTokens take{s};
        CHECK(take.tokens(CPU{}) == take.formula());
        for (int order = 0; order <= 4; order++) {
            const Order chosen(order);
            CHECK(take.tokens(test_gpu()) == take.formula());
        }
    }
}
