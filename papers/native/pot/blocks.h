// The loops: rows of a outermost, then rows of b, then k, in blocks of U0 x U1 rows and U2 vectors. The
// sums of an element of c lie in U2 vectors whatever the block, so that it has the same bits alone, at
// the edge, and inside.
#pragma once
#include "products.h"
#include "range.h"

namespace {

using sterna::pot::Args;

// What blocks of vectors, up to k, have left of two rows: adds it to their U2 sums, and with kSeen its codes to their
// union. A function of its own, so that blocks are loops over whole vectors alone.
template <class C, class W, bool kSeen>
[[gnu::noinline]] void rest(const typename W::Element* a, const typename C::Word* b, int64_t k,
                            int64_t K, typename W::Acc* sums, VI* seen) {
    const auto step = [&](auto part) {
        const auto code = C::decode(b, k, part);
        if constexpr (kSeen) *seen = i_or(*seen, code);
        *sums = W::dot(*sums, load(a + k, part), W::factor(code));
    };
    for (; k < K; ++sums, k += kLanes) {
        if (k + kLanes <= K) {
            step(All());
        } else {
            step(First(K - k));
        }
    }
}

// One block: codes C multiplied the way W. Returns the union of the addends if kSeen, else 0.
template <class C, class W, bool kSeen, int U0, int U1, int U2>
[[gnu::noinline]] uint32_t block(const Args& args, int64_t j, int64_t i) {
    using X = typename W::Element;
    using Word = typename C::Word;
    const X* a[U0];
    const Word* b[U1];
#pragma GCC unroll 4
    for (int n = 0; n < U0; ++n) a[n] = static_cast<const X*>(args.a) + (j + n) * args.K;
#pragma GCC unroll 4
    for (int p = 0; p < U1; ++p) b[p] = static_cast<const Word*>(args.b) + (i + p) * args.words;

    typename W::Acc acc[U2][U0][U1];
    VI codes = i_set1(0);
    const auto each = [](auto f) {
#pragma GCC unroll 4
        for (int u = 0; u < U2; ++u)
#pragma GCC unroll 4
            for (int n = 0; n < U0; ++n)
#pragma GCC unroll 4
                for (int p = 0; p < U1; ++p) f(u, n, p);
    };
    each([&](int u, int n, int p) { acc[u][n][p] = W::zero(); });
    int64_t k = 0;
    for (; k + U2 * kLanes <= args.K; k += U2 * kLanes) {
#pragma GCC unroll 4
        for (int u = 0; u < U2; ++u) {
            const int64_t at = k + u * kLanes;
            typename W::Factor factor[U1];
#pragma GCC unroll 4
            for (int p = 0; p < U1; ++p) {
                const auto code = C::decode(b[p], at, All());
                if constexpr (kSeen) codes = i_or(codes, code);
                factor[p] = W::factor(code);
            }
#pragma GCC unroll 4
            for (int n = 0; n < U0; ++n) {
                const auto x = load(a[n] + at, All());
#pragma GCC unroll 4
                for (int p = 0; p < U1; ++p) acc[u][n][p] = W::dot(acc[u][n][p], x, factor[p]);
            }
        }
    }

    VI seen = codes;
    if (k < args.K) {
        typename W::Acc sums[U0][U1][U2];  // in memory, where `acc` is not
        each([&](int u, int n, int p) { sums[n][p][u] = acc[u][n][p]; });
        VI of_rest = codes;
        for (int n = 0; n < U0; ++n)
            for (int p = 0; p < U1; ++p)
                rest<C, W, kSeen>(a[n], b[p], k, args.K, sums[n][p], &of_rest);
        each([&](int u, int n, int p) { acc[u][n][p] = sums[n][p][u]; });
        seen = of_rest;
    }
    X* c = static_cast<X*>(args.c) + j * args.M + i;
#pragma GCC unroll 4
    for (int n = 0; n < U0; ++n)
#pragma GCC unroll 4
        for (int p = 0; p < U1; ++p) {
            auto sum = acc[0][n][p];
#pragma GCC unroll 4
            for (int u = 1; u < U2; ++u) sum = W::join(sum, acc[u][n][p]);
            c[n * args.M + p] = W::total(sum);
        }
    return kSeen ? i_any(seen) : 0;
}

// The elements of a block one by one: for values that hardly ever come, unrolling is not worth its code. An element's
// bits are the same.
template <class C, class W, bool kSeen, int U0, int U1, int U2>
uint32_t one_by_one(const Args& args, int64_t j, int64_t i) {
    uint32_t seen = 0;
    for (int n = 0; n < U0; ++n)
        for (int p = 0; p < U1; ++p) seen |= block<C, W, kSeen, 1, 1, U2>(args, j + n, i + p);
    return seen;
}

// A kernel: its codes, and the way that the values of a block allow.

template <class C>
struct ByAddition : C {
    using Element = float;
    template <int U0, int U1, int U2>
    static void run(const Args& args, const Range& x, int64_t j, int64_t i) {
        if (!args.special || (x.normal() && x.fits(C::kMaxExponent))) {
            block<C, AddExponents, false, U0, U1, U2>(args, j, i);
        } else if (x.fits(C::kMaxExponent)) {
            block<C, FusedPowers, false, U0, U1, U2>(args, j, i);
        } else {
            one_by_one<C, Powers, false, U0, U1, U2>(args, j, i);
        }
    }
};

// 255 as the greatest exponent would leave no activation: the block finds out which exponents
// there are, and is done again should one have been too large.
template <>
struct ByAddition<Pot16> : Pot16 {
    using Element = float;
    template <int U0, int U1, int U2>
    static void run(const Args& args, const Range& x, int64_t j, int64_t i) {
        if (!args.special) {
            block<Pot16, AddExponents, false, U0, U1, U2>(args, j, i);
            return;
        }
        if (x.high < 255) {
            const uint32_t seen =
                x.normal() ? block<Pot16, AddExponents, true, U0, U1, U2>(args, j, i)
                           : one_by_one<Pot16, FusedPowers, true, U0, U1, U2>(args, j, i);
            const uint32_t most = seen >> 23 & 255;  // at least the greatest
            if (x.fits(most) && (x.normal() || most <= 127)) return;
        }
        one_by_one<Pot16, SplitPowers, false, U0, U1, U2>(args, j, i);
    }
};

template <class C>
struct ByFma : C {
    using Element = float;
    template <int U0, int U1, int U2>
    static void run(const Args& args, const Range& x, int64_t j, int64_t i) {
        if (!args.special || x.fits(C::kMaxExponent)) {
            block<C, FusedPowers, false, U0, U1, U2>(args, j, i);
        } else {
            one_by_one<C, Powers, false, U0, U1, U2>(args, j, i);
        }
    }
};

struct Pot8Fma : ByFma<Pot8> {
    static constexpr const char* kName = "pot8-fma";
};
struct Pot4Fma : ByFma<Pot4> {
    static constexpr const char* kName = "pot4-fma";
};

// Kernels whose products have no special cases.
template <class C, class W>
struct Direct : C {
    using Element = typename W::Element;
    template <int U0, int U1, int U2>
    static void run(const Args& args, const Range&, int64_t j, int64_t i) {
        block<C, W, false, U0, U1, U2>(args, j, i);
    }
};

struct F32 : Direct<Plain<float>, Multiply> {
    static constexpr const char* kName = "f32";
    static constexpr Words kWords = Words::kF32;
    static constexpr uint32_t kMaxExponent = 0;
};
struct I32 : Direct<Plain<int32_t>, IntegerMultiply> {
    static constexpr const char* kName = "i32";
    static constexpr Words kWords = Words::kI32;
    static constexpr uint32_t kMaxExponent = 0;
};
struct FxPot : Direct<Plain<uint32_t>, Shifts> {
    static constexpr const char* kName = "fxpot";
    static constexpr Words kWords = Words::kU32;
    static constexpr uint32_t kMaxExponent = 0;
};

// The blocks of a kernel: of[n][p] has 2^n rows of a and 2^p rows of b.
struct Blocks {
    void (*of[3][3])(const Args& args, const Range& x, int64_t j, int64_t i);
    int most_of_a, most_of_b;  // the greatest n and p
    bool ranged;  // whether it asks for the range of activations
};
constexpr int exponent_of(int power) { return power > 1 ? 1 + exponent_of(power / 2) : 0; }

template <class P, int U0, int U1, int U2>
constexpr void add_blocks(Blocks& blocks) {
    blocks.of[exponent_of(U0)][exponent_of(U1)] = P::template run<U0, U1, U2>;
    if constexpr (U1 > 1) add_blocks<P, U0, U1 / 2, U2>(blocks);
    if constexpr (U0 > 1) add_blocks<P, U0 / 2, U1, U2>(blocks);
}
template <class P, int U0, int U1, int U2>
constexpr Blocks blocks_of() {
    Blocks blocks{{}, exponent_of(U0), exponent_of(U1), P::kMaxExponent > 0};
    add_blocks<P, U0, U1, U2>(blocks);
    return blocks;
}
template <class P, int U0, int U1, int U2>
constexpr Blocks kBlocks = blocks_of<P, U0, U1, U2>();

// Rows [j, j1) of a times rows [i0, i1) of b, by the greatest blocks that fit.
[[gnu::noinline]] void run_blocks(const Blocks& blocks, const Args& args, int64_t j, int64_t j1,
                                  int64_t i0, int64_t i1) {
    for (int n = blocks.most_of_a; n >= 0; --n)
        for (; j + (1 << n) <= j1; j += 1 << n) {
            Range x{0, 0};
            if (blocks.ranged && args.special)
                x = range_of(static_cast<const float*>(args.a) + j * args.K, (1 << n) * args.K);
            int64_t i = i0;
            for (int p = blocks.most_of_b; p >= 0; --p)
                for (; i + (1 << p) <= i1; i += 1 << p) blocks.of[n][p](args, x, j, i);
        }
}

template <class P, int U0, int U1, int U2>
void run_kernel(const Args& args, int64_t j0, int64_t j1, int64_t i0, int64_t i1) {
    run_blocks(kBlocks<P, U0, U1, U2>, args, j0, j1, i0, i1);
}

}  // namespace
