// Each variant has its twin for the other device: what a program with both halves is linked with, a test of one variant too.
#include "attention/variant.h"
#include "tests/catch.h"

TEST_CASE("variants: those of the GPU are those of the CPU", "[gpu][variants]") {
    std::vector<std::string> on_cpu, on_gpu;
    for (const Variant* variant : all_variants()) on_cpu.push_back(variant->name);
    for (const Variant* variant : all_variants_on_gpu()) on_gpu.push_back(variant->name);
    CHECK(!on_gpu.empty());
    CHECK(on_gpu == on_cpu);
}
