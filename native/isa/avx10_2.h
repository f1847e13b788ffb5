// on: x86_64 | requires: avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx10_2 | rank: 7 | built: by name | extends: avx512 by products | flags: -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi -mavx10.2 -mprefer-vector-width=512
// avx512 with the dot product of signed bytes, as avxvnniint8 has it in 256 bits: Nova Lake, Diamond Rapids.
#pragma once
#define STERNA_SIGNED_DOT 1
#include "isa/x86_vnni512.inc"

namespace {}  // namespace
