// on: x86_64 | requires: avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx512bf16 | rank: 6 | extends: avx512 by floats | flags: -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi -mavx512bf16 -mprefer-vector-width=512
// avx512 with the products of bf16 pairs of Zen 4 and later, and of Sapphire Rapids, where amx has faster ones.
#pragma once
#include "isa/x86_bf16.inc"
#include "isa/x86_vnni512.inc"

namespace {

// Each lane adds two products of bf16 pairs, that of the high halves first: two fused multiply-adds, which round half to
// even and take and give denormals as 0 (Intel SDM vol. 2, VDPBF16PS). The vectors are the floats that such pairs lie in.
inline VF bf16_dot(VF acc, VF w, VF x) {
    return _mm512_dpbf16_ps(acc, (__m512bh)i_bits(w), (__m512bh)i_bits(x));
}

}  // namespace
