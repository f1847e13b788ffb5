// VPDPBUSD and VPDPWSSD of AVX-VNNI, VPDPBSSD of AVX-VNNI-INT8, VCVTNE2PS2BF16 and VDPBF16PS of AVX512-BF16.
#pragma once
#include <stdint.h>
#include <string.h>

#include "bf16.h"
#include "instruction.h"

namespace {

// acc[i] += the sum of count products of lane i, modulo 2^32.
template <class A, class B, int count>
void add_products(int32_t* acc, const void* a, const void* b, int lanes) {
    const A* x = static_cast<const A*>(a);
    const B* y = static_cast<const B*>(b);
    for (int i = 0; i < lanes; ++i) {
        uint32_t sum = static_cast<uint32_t>(acc[i]);
        for (int j = 0; j < count; ++j)
            sum += static_cast<uint32_t>(x[count * i + j] * y[count * i + j]);
        acc[i] = static_cast<int32_t>(sum);
    }
}

// The operand that may be memory.
void read_operand(Registers& r, const Instruction& in, void* to) {
    const void* memory = reinterpret_cast<const void*>(in.address + in.step);
    const int bytes = in.vector_bytes, step = in.broadcast ? 4 : bytes;
    if (!in.memory) return r.read_vector(in.rm, to, bytes);
    for (int at = 0; at < bytes; at += step) memcpy(static_cast<char*>(to) + at, memory, step);
}

bool dot_product(Registers& r, const Instruction& in) {
    const int bytes = in.vector_bytes;
    int32_t acc[8];
    alignas(32) uint8_t a[32], b[32];
    r.read_vector(in.reg, acc, bytes);
    r.read_vector(in.vvvv, a, bytes);
    read_operand(r, in, b);
    if (in.opcode == 0x50 && in.prefix == kF2)
        add_products<int8_t, int8_t, 4>(acc, a, b, bytes / 4);  // VPDPBSSD
    else if (in.opcode == 0x50)
        add_products<uint8_t, int8_t, 4>(acc, a, b, bytes / 4);  // VPDPBUSD
    else
        add_products<int16_t, int16_t, 2>(acc, a, b, bytes / 4);  // VPDPWSSD
    r.write_vector(in.reg, acc, bytes);
    return true;
}

bool convert_two(Registers& r, const Instruction& in) {  // VCVTNE2PS2BF16
    uint32_t low[16], high[16];
    uint16_t to[32];
    read_operand(r, in, low);
    r.read_vector(in.vvvv, high, 64);
    for (int i = 0; i < 16; ++i) {
        to[i] = to_bf16(low[i]);
        to[16 + i] = to_bf16(high[i]);
    }
    r.write_vector(in.reg, to, 64);
    return true;
}

bool dot_pairs(Registers& r, const Instruction& in) {  // VDPBF16PS
    __m256 sum[2];
    __m256i a[2], b[2];
    r.read_vector(in.reg, sum, 64);
    r.read_vector(in.vvvv, a, 64);
    read_operand(r, in, b);
    for (int i = 0; i < 2; ++i) sum[i] = add_pairs_bf16(sum[i], a[i], b[i]);
    r.write_vector(in.reg, sum, 64);
    return true;
}

}  // namespace
