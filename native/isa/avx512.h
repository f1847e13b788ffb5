// on: x86_64 | requires: avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi | rank: 5 | extends: avx512bw by products | flags: -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi -mprefer-vector-width=512
// 512-bit vectors with VNNI and VBMI: Ice Lake, Zen 4 and later.
#pragma once
#include "isa/x86_vnni512.inc"

namespace {}  // namespace
