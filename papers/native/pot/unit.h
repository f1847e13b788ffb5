// The table of one instruction set's kernels; its vocabulary comes before.
#pragma once
#include "blocks.h"
#include "unrolls.h"

namespace {

template <class P>
constexpr bool kIsInteger = false;
template <>
constexpr bool kIsInteger<I32> = true;
template <>
constexpr bool kIsInteger<FxPot> = true;

template <class P, int U0, int U1, int U2>
constexpr sterna::pot::Kernel kernel() {
    return {P::kName, P::kWords, kIsInteger<P>, {U0, U1, U2}, run_kernel<P, U0, U1, U2>};
}

constexpr sterna::pot::Kernel kKernels[] = {
#define STERNA_POT_KERNELS(U0, U1, U2)                                                         \
    kernel<ByAddition<Pot8>, U0, U1, U2>(), kernel<ByAddition<Pot16>, U0, U1, U2>(),           \
        kernel<ByAddition<Pot4>, U0, U1, U2>(), kernel<Pot8Fma, U0, U1, U2>(),                 \
        kernel<Pot4Fma, U0, U1, U2>(), kernel<FxPot, U0, U1, U2>(), kernel<F32, U0, U1, U2>(), \
        kernel<I32, U0, U1, U2>(),
    STERNA_POT_UNROLLS(STERNA_POT_KERNELS)
#undef STERNA_POT_KERNELS
};

constexpr sterna::pot::Table kTable = {kKernels, sizeof kKernels / sizeof *kKernels};

}  // namespace
