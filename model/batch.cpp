#include "model/batch.h"

#include <algorithm>
#include <vector>

void find_documents(const int32_t* tokens, int B, int T, int32_t end_of_text, int32_t* start) {
    for (int b = 0; b < B; b++)
        for (int t = 0, begin = 0; t < T; t++) {
            const size_t at = size_t(b) * T + t;
            if (tokens[at] == end_of_text) begin = t;
            start[at] = begin;
        }
}

void sort_by_token(const int32_t* tokens, int n, int V, int32_t* rows, TokenRun* runs) {
    std::vector<int32_t> begin(size_t(V) + 1, 0);   // counting sort, which keeps the order of equal tokens
    for (int row = 0; row < n; row++) begin[tokens[row] + 1]++;
    for (int token = 0; token < V; token++) begin[token + 1] += begin[token];
    std::vector<int32_t> next(begin.begin(), begin.end() - 1);
    for (int row = 0; row < n; row++) rows[next[tokens[row]]++] = row;

    TokenRun* to = runs;
    for (const bool several : {true, false})
        for (int token = 0; token < V; token++) {
            if ((begin[token + 1] - begin[token] > RowsByToken::RUN) != several) continue;
            for (int at = begin[token]; at < begin[token + 1]; at += RowsByToken::RUN)
                *to++ = {token, at, std::min(at + RowsByToken::RUN, begin[token + 1])};
        }
    std::fill(to, runs + RowsByToken::capacity_for(n, V), TokenRun{0, 0, 0});
}
