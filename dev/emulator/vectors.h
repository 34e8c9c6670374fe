// CUDA's vector types. Kernels read arrays of other types through them, sixteen bytes at a time, hence may_alias.
#pragma once

#define EMULATOR_VECTOR(bytes) struct __attribute__((may_alias, aligned(bytes)))

EMULATOR_VECTOR(8) int2 { int x, y; };
EMULATOR_VECTOR(16) int4 { int x, y, z, w; };
EMULATOR_VECTOR(4) uint3 { unsigned x, y, z; };
EMULATOR_VECTOR(16) uint4 { unsigned x, y, z, w; };
EMULATOR_VECTOR(8) float2 { float x, y; };
EMULATOR_VECTOR(16) float4 { float x, y, z, w; };

#undef EMULATOR_VECTOR

constexpr uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
constexpr float2 make_float2(float x, float y) { return {x, y}; }

/// The size of a grid or block.
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
