// superblocks.h on a matrix unit: pairs of tiles of 16 tokens x one group's k, whose sums become floats while
// the unit works on the next pair.
#pragma once
#include "grouped_tiles.h"
#include "superblocks.h"

namespace {

template <class F>
struct SuperTile;

#ifdef tile_dot

template <int kSpan>
struct SuperTokens {
    float scale[16];
    float minimum[kGroupK / kSpan][16];  // the factors of minima

    void gather(const sterna::LinearArgs& a, int64_t n, int64_t k) {
        for (int i = 0; i < 16; ++i) {
            scale[i] = group_scale(a, n + i, k);
            for (int j = 0; j < kGroupK / kSpan; ++j)
                minimum[j][i] = span_factor<kSpan>(a, n + i, k + j * kSpan);
        }
    }
};

// 16 tokens x 16 rows over the super-blocks of one block of k.
template <class F>
struct SuperTile : GroupProducts<F> {
    static constexpr int kGroup = F::kSuperGroup;
    static constexpr int kSpan = kScaled<F> ? kGroupK : kGroup, kPair = 2 * kSpan;  // of a product
    static_assert(kGroupedBlockK % kSuperK == 0);
    using Format = F;
    using Tokens = SuperTokens<kGroup>;
    using Scales = SuperScales<F>;
    const sterna::LinearArgs& a;
    const Scales& scales;
    const Tokens* tokens;  // [k / 32]
    int row;  // of the tile

    static void prepare(const sterna::LinearArgs& a, const Scales& scales, int64_t k0, int64_t kc,
                        uint8_t* panel) {
        if constexpr (kScaled<F>) {
            for (int g = 0; g < F::kGroups; ++g)
                scale_panel(scales, k0, kc, g, panel + g * kc * 16);
            if constexpr (kTurned<F>) to_levels(panel, F::kGroups * kc * 16, 256);
        } else {
            to_levels(panel, F::kGroups * kc * 16, a.z2);
        }
    }
    SuperTile(const sterna::LinearArgs& args, const Scales& s, const Tokens* x, int group)
        : a(args), scales(s), tokens(x), row(group * sterna::kGroupRows) {}

    // Accumulators I and I + 1 = the sums of the groups at k, which counts from x and w.
    template <int I>
    static void pair(const int8_t* x, const uint8_t* w, int64_t k) {
        SuperTile::template product<I>(x + k / 64 * kTileBytes + k % 64, w + k * 16);
        k += kSpan;
        SuperTile::template product<I + 1>(x + k / 64 * kTileBytes + k % 64, w + k * 16);
    }
    template <int I>
    static void store_pair(int32_t* sums) {
        SuperTile::template store<I>(sums);
        SuperTile::template store<I + 1>(sums + 256);
    }

    // p += the pair of groups at k.
    [[gnu::always_inline]] void add(const int32_t* sums, int64_t k, VF (&p)[16]) const {
        VF s0, s1;
        if constexpr (!kScaled<F>) {
            s0 = scales.scale(k, row);
            s1 = scales.scale(k + kSpan, row);
        }
        const float *x0 = tokens[k / kGroupK].scale, *x1 = tokens[(k + kSpan) / kGroupK].scale;
#pragma GCC unroll 16
        for (int n = 0; n < 16; ++n) {
            VF t = f_from_i(i_load(sums + 16 * n)), next = f_from_i(i_load(sums + 256 + 16 * n));
            if constexpr (!kScaled<F>) t = f_mul(t, s0);
            if constexpr (kPair == kGroupK) {  // exact, as it is in superblocks.h
                p[n] = f_fma(f_fma(next, s1, t), f_set1(x0[n]), p[n]);
            } else {
                if constexpr (!kScaled<F>) next = f_mul(next, s1);
                p[n] = f_fma(next, f_set1(x1[n]), f_fma(t, f_set1(x0[n]), p[n]));
            }
        }
    }

    // The end of the super-block from k on.
    [[gnu::always_inline]] void end(int64_t k, float* out, VF (&p)[16]) const {
        VF d = scales.d(k, row);
        if (kScaled<F> && kTurned<F>) d = f_sub(f_set1(0.0f), d);
#pragma GCC unroll 16
        for (int n = 0; n < 16; ++n) p[n] = f_fma(p[n], d, k ? f_load(out + 16 * n) : f_set1(0.0f));
#pragma GCC unroll 16
        for (int n = 0; n < 16; ++n) {
            f_store(out + 16 * n, p[n]);
            p[n] = f_set1(0.0f);
        }
        if (!a.groups.minima) return;
        for (int64_t j = k; j < k + kSuperK; j += kGroup) {
            const VF m = scales.minimum(j, row);
            const float* x = tokens[j / kGroupK].minimum[j % kGroupK / kGroup];
#pragma GCC unroll 16
            for (int n = 0; n < 16; ++n) p[n] = f_fma(m, f_set1(x[n]), p[n]);
        }
        const VF d_minimum = scales.d_minimum(k, row);
#pragma GCC unroll 16
        for (int n = 0; n < 16; ++n) {
            f_store(out + 16 * n, f_fma(p[n], d_minimum, f_load(out + 16 * n)));
            p[n] = f_set1(0.0f);
        }
    }

    // k in [k0, k1); w and x at k0. The unit is a pair ahead of the sums that are stored, and these one ahead
    // of those that are added, as in grouped_tiles.h.
    void run(const int8_t* x, const uint8_t* w, int64_t k0, int64_t k1, int32_t* sums,
             float* out) const {
        const int64_t kc = k1 - k0;
        int32_t* other = sums + 512;
        VF p[16];
#pragma GCC unroll 16
        for (int n = 0; n < 16; ++n) p[n] = f_set1(0.0f);
        pair<0>(x, w, 0);
        for (int64_t k = 0; k < kc; k += 2 * kPair) {
            pair<2>(x, w, k + kPair);
            store_pair<0>(sums);
            if (k > 0) add(other, k0 + k - kPair, p);
            if (k > 0 && k % kSuperK == 0) end(k0 + k - kSuperK, out, p);
            if (k + 2 * kPair < kc) pair<0>(x, w, k + 2 * kPair);
            store_pair<2>(other);
            add(sums, k0 + k, p);
        }
        add(other, k1 - kPair, p);
        end(k1 - kSuperK, out, p);
    }
};

#endif

}  // namespace
