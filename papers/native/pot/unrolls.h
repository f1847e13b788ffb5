// The unroll factors that are compiled: {1, 2, 4} for rows of a, rows of b and vectors of k, as far as
// the sums of a block and their operands fit the registers (32 of AVX-512, 16 otherwise).
#pragma once

// clang-format off
#define STERNA_POT_UNROLLS_8(U)                                   \
    U(1, 1, 1) U(1, 1, 2) U(1, 1, 4) U(1, 2, 1) U(1, 2, 2)        \
    U(1, 2, 4) U(1, 4, 1) U(1, 4, 2) U(2, 1, 1) U(2, 1, 2)        \
    U(2, 1, 4) U(2, 2, 1) U(2, 2, 2) U(2, 4, 1) U(4, 1, 1)        \
    U(4, 1, 2) U(4, 2, 1)

#define STERNA_POT_UNROLLS_16(U)                                  \
    STERNA_POT_UNROLLS_8(U)                                       \
    U(1, 4, 4) U(2, 2, 4) U(2, 4, 2) U(4, 1, 4) U(4, 2, 2) U(4, 4, 1)
// clang-format on

#ifdef STERNA_POT_ONLY
#undef STERNA_POT_UNROLLS
#define STERNA_POT_UNROLLS(U) STERNA_POT_ONLY(U)
#endif
