// The loops: rows of a outermost, then rows of b, then k, in blocks of U0 x U1 rows and U2 vectors. The
// sums of an element of c lie in U2 vectors whatever the block, so that it has the same bits alone, at
// the edge, and inside.
#pragma once
#include "products.h"

namespace {

using sterna::pot::Args;

// The least and the greatest exponent field of the activations of a block.
struct Range {
    uint32_t low, high;
    // Whether adding e <= most to any of these exponents is a multiplication.
    bool normal() const { return low > 0; }
    bool fits(uint32_t most) const { return high + most <= 254; }
};

// A plain loop, which compilers vectorise; it costs 1 / M of the product.
inline Range range_of(const float* x, int64_t count) {
    uint32_t low = kExponentBits, high = 0;
    for (int64_t k = 0; k < count; ++k) {
        const uint32_t e = __builtin_bit_cast(uint32_t, x[k]) & kExponentBits;
        low = e < low ? e : low;
        high = e > high ? e : high;
    }
    return {low >> 23, high >> 23};
}

// One block: codes C multiplied the way W. Returns the union of the addends if kSeen, else 0.
template <class C, class W, bool kSeen, int U0, int U1, int U2>
struct Block {
    using X = typename W::Element;
    using Word = typename C::Word;
    const X* a[U0];
    const Word* b[U1];
    typename W::Acc acc[U2][U0][U1];
    VI seen = i_set1(0);

    // Vector u of the block, whose elements are k and those behind it.
    template <class Part>
    [[gnu::always_inline]] void step(int u, int64_t k, Part part) {
        typename W::Factor factor[U1];
#pragma GCC unroll 4
        for (int p = 0; p < U1; ++p) {
            const auto code = C::decode(b[p], k, part);
            if constexpr (kSeen) seen = i_or(seen, code);
            factor[p] = W::factor(code);
        }
#pragma GCC unroll 4
        for (int n = 0; n < U0; ++n) {
            const auto x = load(a[n] + k, part);
#pragma GCC unroll 4
            for (int p = 0; p < U1; ++p) acc[u][n][p] = W::dot(acc[u][n][p], x, factor[p]);
        }
    }
    [[gnu::always_inline]] void sum(int64_t K) {
#pragma GCC unroll 4
        for (int u = 0; u < U2; ++u)
#pragma GCC unroll 4
            for (int n = 0; n < U0; ++n)
#pragma GCC unroll 4
                for (int p = 0; p < U1; ++p) acc[u][n][p] = W::zero();
        int64_t k = 0;
        for (; k + U2 * kLanes <= K; k += U2 * kLanes) {
#pragma GCC unroll 4
            for (int u = 0; u < U2; ++u) step(u, k + u * kLanes, All());
        }
#pragma GCC unroll 4
        for (int u = 0; u < U2; ++u, k += kLanes) {
            if (k + kLanes <= K) {
                step(u, k, All());
            } else if (k < K) {
                step(u, k, First(K - k));
            }
        }
    }
    X total(int n, int p) const {
        auto s = acc[0][n][p];
#pragma GCC unroll 4
        for (int u = 1; u < U2; ++u) s = W::join(s, acc[u][n][p]);
        return W::total(s);
    }
};

template <class C, class W, bool kSeen, int U0, int U1, int U2>
[[gnu::noinline]] uint32_t block(const Args& args, int64_t j, int64_t i) {
    Block<C, W, kSeen, U0, U1, U2> t;
    using X = typename W::Element;
#pragma GCC unroll 4
    for (int n = 0; n < U0; ++n) t.a[n] = static_cast<const X*>(args.a) + (j + n) * args.K;
#pragma GCC unroll 4
    for (int p = 0; p < U1; ++p)
        t.b[p] = static_cast<const typename C::Word*>(args.b) + (i + p) * args.words;
    t.sum(args.K);
    X* c = static_cast<X*>(args.c) + j * args.M + i;
#pragma GCC unroll 4
    for (int n = 0; n < U0; ++n)
#pragma GCC unroll 4
        for (int p = 0; p < U1; ++p) c[n * args.M + p] = t.total(n, p);
    return kSeen ? i_any(t.seen) : 0;
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

template <class P, int U0, int U1, int U2>
void rows_of_b(const Args& args, const Range& x, int64_t j, int64_t i, int64_t i1) {
    for (; i + U1 <= i1; i += U1) P::template run<U0, U1, U2>(args, x, j, i);
    if constexpr (U1 > 1) {
        if (i < i1) rows_of_b<P, U0, U1 / 2, U2>(args, x, j, i, i1);
    }
}

template <class P, int U0, int U1, int U2>
void rows_of_a(const Args& args, int64_t j, int64_t j1, int64_t i0, int64_t i1) {
    for (; j + U0 <= j1; j += U0) {
        Range x{0, 0};
        if constexpr (P::kMaxExponent > 0) {
            if (args.special)
                x = range_of(static_cast<const float*>(args.a) + j * args.K, U0 * args.K);
        }
        rows_of_b<P, U0, U1, U2>(args, x, j, i0, i1);
    }
    if constexpr (U0 > 1) {
        if (j < j1) rows_of_a<P, U0 / 2, U1, U2>(args, j, j1, i0, i1);
    }
}

}  // namespace
