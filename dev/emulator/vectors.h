// CUDA's vector types. Kernels read arrays of other types through them, sixteen bytes at a time, hence may_alias.
#pragma once

#define EMULATOR_VECTOR(bytes) struct __attribute__((may_alias, aligned(bytes)))

EMULATOR_VECTOR(2) uchar2 { unsigned char x, y; };
EMULATOR_VECTOR(4) uchar4 { unsigned char x, y, z, w; };
EMULATOR_VECTOR(4) ushort2 { unsigned short x, y; };
EMULATOR_VECTOR(8) ushort4 { unsigned short x, y, z, w; };
EMULATOR_VECTOR(8) int2 { int x, y; };
EMULATOR_VECTOR(4) int3 { int x, y, z; };
EMULATOR_VECTOR(16) int4 { int x, y, z, w; };
EMULATOR_VECTOR(8) uint2 { unsigned x, y; };
EMULATOR_VECTOR(4) uint3 { unsigned x, y, z; };
EMULATOR_VECTOR(16) uint4 { unsigned x, y, z, w; };
EMULATOR_VECTOR(16) longlong2 { long long x, y; };
EMULATOR_VECTOR(16) ulonglong2 { unsigned long long x, y; };
EMULATOR_VECTOR(8) float2 { float x, y; };
EMULATOR_VECTOR(4) float3 { float x, y, z; };
EMULATOR_VECTOR(16) float4 { float x, y, z, w; };
EMULATOR_VECTOR(16) double2 { double x, y; };

#undef EMULATOR_VECTOR

constexpr int2 make_int2(int x, int y) { return {x, y}; }
constexpr int3 make_int3(int x, int y, int z) { return {x, y, z}; }
constexpr int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
constexpr uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
constexpr uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
constexpr uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
constexpr float2 make_float2(float x, float y) { return {x, y}; }
constexpr float3 make_float3(float x, float y, float z) { return {x, y, z}; }
constexpr float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
constexpr double2 make_double2(double x, double y) { return {x, y}; }

/// The size of a grid or block.
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
