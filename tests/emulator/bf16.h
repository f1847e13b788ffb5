// The arithmetic of AVX512-BF16 (Intel SDM vol. 2), which does not ask MXCSR how to round.
#pragma once
#include <immintrin.h>
#include <stdint.h>

namespace {

// A float rounded to bf16 as VCVTNE2PS2BF16 does: half to even, denormals become 0.
inline uint16_t to_bf16(uint32_t bits) {
    const uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) return static_cast<uint16_t>(bits >> 16 | 0x40);  // quiet
    if (magnitude < 0x00800000) return static_cast<uint16_t>(bits >> 16 & 0x8000);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// VDPBF16PS of 8 lanes: to each sum the product of the high halves of a and b is added, then that of the low ones, by fused
// multiply-adds that round half to even; denormals are taken as 0, and become 0. A compiler does not know that arithmetic
// depends on MXCSR, but it keeps these statements in order.
inline __m256 add_pairs_bf16(__m256 sum, __m256i a, __m256i b) {
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
    const __m256 high_a = _mm256_castsi256_ps(_mm256_and_si256(a, upper));
    const __m256 high_b = _mm256_castsi256_ps(_mm256_and_si256(b, upper));
    const __m256 low_a = _mm256_castsi256_ps(_mm256_slli_epi32(a, 16));
    const __m256 low_b = _mm256_castsi256_ps(_mm256_slli_epi32(b, 16));
    const uint32_t flushing = 0x9FC0;  // half to even, no exceptions, denormals as 0
    uint32_t before;
    asm volatile("vstmxcsr %0" : "=m"(before));
    asm volatile("vldmxcsr %0" ::"m"(flushing));
    asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(high_a), "x"(high_b));
    asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(low_a), "x"(low_b));
    asm volatile("vldmxcsr %0" ::"m"(before));
    return sum;
}

}  // namespace
