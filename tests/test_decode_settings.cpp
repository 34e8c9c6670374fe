// Writing row by row under settings that change what a layer keeps, or how it reads it.
#include "tests/whole_text.h"

TEST_CASE("decode: every row of a long text is that of a whole pass, under settings that change what is kept", "[decode]") {
    const std::pair<const char*, std::map<std::string, double>> cases[] = {
        {"adaptive_sparse", {{"adaptive_sparse_mask", 0}}},
        {"adaptive_sparse", {{"adaptive_sparse_mask", 1}, {"adaptive_sparse_query", 1}}},
        {"adaptive_sparse", {{"adaptive_sparse_threshold", 0.4}, {"adaptive_sparse_dense_heads", 0}}},
        {"adaptive_sparse", {{"adaptive_sparse_sink", 1}, {"adaptive_sparse_head_threshold", -1}}},
        {"adaptive_sparse", {{"adaptive_sparse_block", 128}}},
        {"adaptive_sparse", {{"adaptive_sparse_distil", 2}}},
        {"deepseek_sparse", {{"deepseek_sparse_distil", 2}}},
        {"deepseek_sparse", {{"deepseek_sparse_heads", 1}, {"deepseek_sparse_top_k", 1}}},
        {"dsa", {{"attention_dense_until", 100}}},
        {"dsa", {{"attention_dense_until", 0}, {"attention_window", 0}}},
        {"deepspeed_fixed", {{"deepspeed_fixed_block", 16}, {"deepspeed_fixed_local", 3}}},
        {"deepspeed_fixed", {{"deepspeed_fixed_block", 16}, {"deepspeed_fixed_local", 3}, {"deepspeed_fixed_per_head", 1}}},
        {"fixed_factorized", {{"fixed_factorized_chunk", 20}, {"fixed_factorized_summary", 0}}},
        {"fixed_factorized", {{"fixed_factorized_chunk", 100}, {"fixed_factorized_summary", 30}}},
        {"fixed_factorized", {{"fixed_factorized_chunk", 20}, {"fixed_factorized_summary", 20}}},
        {"forgetting", {{"forgetting_rope", 1}}},
        {"gated", {{"gated_form", 0}}},
        {"infllm_v2", {{"infllm_v2_kernel", 5}, {"infllm_v2_stride", 7}}},
        {"infllm_v2", {{"infllm_v2_kernel", 32}, {"infllm_v2_stride", 16}, {"infllm_v2_local", 2}}},
        {"longnet", {{"longnet_segment", 40}, {"longnet_branches", 3}}},
        {"moba", {{"moba_block", 128}}},
        {"moba", {{"moba_top_k", 1}}},
        {"moh", {{"moh_printed", 1}, {"moh_active", 1}}},
        {"mosa", {{"mosa_dense_heads", 0}}},
        {"mosa", {{"mosa_dense_heads", 4}}},
        {"nsa", {{"nsa_choice", 1}}},
        {"nsa", {{"nsa_shared_kv", 1}}},
        {"nsa", {{"nsa_block", 5}, {"nsa_stride", 7}}},
        {"nsa", {{"nsa_block", 100}, {"nsa_stride", 30}, {"attention_window", 400}}},
        {"routing", {{"routing_local_heads", 0}}},
        {"routing", {{"routing_local_heads", 4}}},
        {"seer", {{"seer_query", 1}, {"seer_sink", 1}}},
        {"seer", {{"seer_threshold", 0.3}, {"seer_distil", 1}}},
        {"seer_r", {{"seer_r_threshold", 0.3}, {"seer_r_top_k", 3}}},
        {"seer_r", {{"seer_r_distil", 2}}},
        {"seer_r", {{"seer_r_block", 128}}},
        {"sinks", {{"sinks_tokens", 0}}},
        {"sinks", {{"sinks_tokens", 200}}},
        {"sinks_cache", {{"attention_window", 0}}},
        {"sliding_window", {{"attention_window", 64}}},
        {"strided", {{"strided_stride", 64}}},
    };
    for (const auto& [name, settings] : cases) {
        INFO(name << " " << settings.begin()->first << " " << settings.begin()->second);
        check_whole_text<double>(named(name), ModelShape{}, 70, 300, 1e-10, settings);
    }
    check_whole_text<double>(named("nsa"), ModelShape{}, 270, 300, 1e-10, {{"nsa_choice", 1}});   // the prompt has begun a tile that chose
}
