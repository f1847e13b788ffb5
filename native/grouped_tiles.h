// Many tokens on a matrix unit where scales are in groups: a tile of 16 tokens x 32 k times one of
// 32 k x 16 rows gives the sums of one group, which become floats while the unit works on the next.
// That costs more than the product: 16 conversions, 32 multiplications and additions of vectors for 16
// cycles of the unit, which 32 k fill by half.
#pragma once
#include "grouped.h"
#include "tiles.h"

namespace {

template <class F>
struct PlainTile;
template <class Tile>
void grouped_tiles(const sterna::LinearArgs& a);
template <class Tile>
constexpr int64_t grouped_tiles_scratch(int64_t K);

#ifdef tile_dot

// Groups of rows x 512 k, decoded, and 16 tokens of activations stay in L1, the outputs of 512 tokens in L2.
constexpr int64_t kGroupedBlockK = 512;
constexpr int kGroupedBlockTokens = 512;

// What a group of 16 tokens' activations is multiplied with, side by side: [k / 32] of these.
struct TokenGroups {
    float scale[16];
    int32_t sum[16];
    float minimum[16];  // the factor of a minimum

    void gather(const sterna::LinearArgs& a, int64_t n, int64_t k) {
        for (int i = 0; i < 16; ++i) {
            scale[i] = group_scale(a, n + i, k);
            sum[i] = span_sum<kGroupK>(a, n + i, k);
            minimum[i] = span_factor<kGroupK>(a, n + i, k);
        }
    }
};

template <class F, class Tokens>
struct GroupedScratch {
    static constexpr int64_t kPanelBytes = F::kGroups * kGroupedBlockK * 16;
    uint8_t* panel;  // [group][k / 4][16 rows][4]
    int32_t* sums;  // [4][16 tokens][16 rows]
    float* y;  // [token / 16][group][16 tokens][16 rows]
    Tokens* x;  // [token / 16][k / 32]
    explicit GroupedScratch(uint8_t* p)
        : panel(p),
          sums(reinterpret_cast<int32_t*>(p + kPanelBytes)),
          y(reinterpret_cast<float*>(sums + 1024)),
          x(reinterpret_cast<Tokens*>(y + kGroupedBlockTokens * F::kGroups * 16)) {}
    static constexpr int64_t bytes(int64_t K) {
        return kPanelBytes + 4096 + int64_t{kGroupedBlockTokens} * F::kGroups * 16 * 4 +
               kGroupedBlockTokens / 16 * (K / kGroupK) * int64_t{sizeof(Tokens)};
    }
};

template <class Tile>
using ScratchOf = GroupedScratch<typename Tile::Format, typename Tile::Tokens>;

template <class Tile>
constexpr int64_t grouped_tiles_scratch(int64_t K) {
    return ScratchOf<Tile>::bytes(K);
}

// Codes of a panel as levels: z2 / 2 less.
inline void to_levels(uint8_t* panel, int64_t bytes, int z2) {
    const VI offset = i_set1((z2 / 2 & 255) * 0x01010101);
    for (int64_t i = 0; i < bytes; i += kLine) i_store(panel + i, b_sub(i_load(panel + i), offset));
}

// acc = x w, of signed weights where they are levels. A macro as tile_load is.
#define STERNA_PRODUCT(acc, x_tile, w_tile) \
    tile_load(x_tile, x, 64);               \
    tile_load(w_tile, w, 64);               \
    tile_zero(acc);                         \
    if constexpr (F::kEvenOffset) {         \
        tile_dot_ss(acc, x_tile, w_tile);   \
    } else {                                \
        tile_dot(acc, x_tile, w_tile);      \
    }

// Accumulator I = the product of a tile of tokens and one of weights: one group's sums.
template <class F>
struct GroupProducts {
    template <int I>
    static void product(const int8_t* x, const uint8_t* w) {
        if constexpr (I == 0) {
            STERNA_PRODUCT(0, 4, 6);
        } else if constexpr (I == 1) {
            STERNA_PRODUCT(1, 5, 7);
        } else if constexpr (I == 2) {
            STERNA_PRODUCT(2, 4, 6);
        } else {
            STERNA_PRODUCT(3, 5, 7);
        }
    }
    template <int I>
    static void store(int32_t* sums) {
        if constexpr (I == 0) tile_store(0, sums);
        if constexpr (I == 1) tile_store(1, sums);
        if constexpr (I == 2) tile_store(2, sums);
        if constexpr (I == 3) tile_store(3, sums);
    }
};

// 16 tokens x 16 rows over the groups of one block of k.
template <class F>
struct PlainTile : GroupProducts<F> {
    using Format = F;
    using Tokens = TokenGroups;
    using Scales = TileScales<F>;
    static constexpr int kSpan = kGroupK;
    const sterna::LinearArgs& a;
    const Scales& scales;
    const Tokens* tokens;  // [k / 32]
    int group;  // of rows

    // A panel just decoded.
    static void prepare(const sterna::LinearArgs& a, const Scales&, int64_t, int64_t kc,
                        uint8_t* panel) {
        if constexpr (F::kEvenOffset) to_levels(panel, F::kGroups * kc * 16, a.z2);
    }
    PlainTile(const sterna::LinearArgs& args, const Scales& s, const Tokens* x, int g)
        : a(args), scales(s), tokens(x), group(g) {}

    [[gnu::always_inline]] void add(const int32_t* sums, int64_t k, VF (&y)[16]) const {
        const uint8_t* line = scales.at(k);
        const int row = group * sterna::kGroupRows;
        const VF s = scales.scale(line, row);
        const GroupOffset<F> offset(a.z2);
        const TokenGroups& group_x = tokens[k / kGroupK];
#pragma GCC unroll 16
        for (int n = 0; n < 16; ++n) {
            VI t = i_load(sums + 16 * n);
            if constexpr (!F::kEvenOffset)
                t = offset.level_sum(F::settle(t, group), group_x.sum[n]);
            y[n] = f_fma(f_from_i(t), f_mul(s, f_set1(group_x.scale[n])), y[n]);
        }
        if (a.groups.minima) {
            const VF m = scales.minimum(line, row);
#pragma GCC unroll 16
            for (int n = 0; n < 16; ++n) y[n] = f_fma(m, f_set1(group_x.minimum[n]), y[n]);
        }
    }

    // The group at k is in accumulator I. The unit is two groups ahead, as a product takes its time, and the
    // vectors are one behind, as a tile just stored is slow to read.
    template <int I>
    [[gnu::always_inline]] void step(const int8_t* x, const uint8_t* w, int64_t k, bool ahead,
                                     bool behind, int32_t* sums, VF (&y)[16]) const {
        if (ahead) PlainTile::template product<(I + 2) % 4>(x, w);
        PlainTile::template store<I>(sums + 256 * I);
        if (behind) add(sums + 256 * ((I + 3) % 4), k - kGroupK, y);
    }

    // k in [k0, k1); w and x at k0.
    void run(const int8_t* x, const uint8_t* w, int64_t k0, int64_t k1, int32_t* sums,
             float* out) const {
        constexpr int64_t kX = 1024,
                          kW = 16 * kLine;  // bytes of 64 k; a group is half of a row of x
        VF y[16];
#pragma GCC unroll 16
        for (int n = 0; n < 16; ++n) y[n] = k0 ? f_load(out + 16 * n) : f_set1(0.0f);
        PlainTile::template product<0>(x, w);
        PlainTile::template product<1>(x + kGroupK, w + kW / 2);
        for (int64_t k = k0; k < k1; k += 128) {
            const bool more = k + 64 < k1, most = k + 128 < k1;
            step<0>(x += kX, w += kW, k, more, k > k0, sums, y);
            step<1>(x + kGroupK, w + kW / 2, k + kGroupK, more, true, sums, y);
            if (!more) break;
            step<2>(x += kX, w += kW, k + 64, most, true, sums, y);
            step<3>(x + kGroupK, w + kW / 2, k + 64 + kGroupK, most, true, sums, y);
        }
        add(sums + 256 * ((k1 - k0) / kGroupK % 4 == 2 ? 1 : 3), k1 - kGroupK, y);
#pragma GCC unroll 16
        for (int n = 0; n < 16; ++n) f_store(out + 16 * n, y[n]);
    }
};

// Tokens [n0, n1) x one tile of weights.
template <class Tile>
inline void grouped_tile(const sterna::LinearArgs& a, int64_t tile, int64_t n0, int64_t n1,
                         const ScratchOf<Tile>& s) {
    using F = typename Tile::Format;
    const typename Tile::Scales scales(a, tile);
    for (int64_t k0 = 0; k0 < a.K; k0 += kGroupedBlockK) {
        const int64_t kc = a.K - k0 < kGroupedBlockK ? a.K - k0 : kGroupedBlockK;
        const uint8_t* codes = a.codes + tile * a.tile_bytes + k0 / F::kStepK * F::kStepBytes;
        decode_panel<F, 0, F::kGroups, true>(codes, kc, s.panel);
        Tile::prepare(a, scales, k0, kc, s.panel);
        float* y = s.y;
        const auto* x = s.x;
        for (int64_t n = n0; n < n1; n += 16, x += a.K / kGroupK)
            for (int g = 0; g < F::kGroups; ++g, y += 256) {
                const Tile block(a, scales, x, g);
                block.run(a.xq + sterna::x_offset(n, k0, a.ldx, 16), s.panel + g * kc * 16, k0,
                          k0 + kc, s.sums, y);
            }
    }
    const float* y = s.y;
    for (int64_t n = n0; n < n1; n += 16)
        for (int g = 0; g < F::kGroups; ++g, y += 256)
            for (int i = 0; i < 16 && n + i < n1; ++i)
                finish_output(a, f_load(y + 16 * i), n + i,
                              (tile * F::kGroups + g) * sterna::kGroupRows);
}

template <class Tile>
void grouped_tiles(const sterna::LinearArgs& a) {
    const ScratchOf<Tile> s(a.scratch);
    tile_begin(16, Tile::kSpan);
    for (int64_t n0 = 0; n0 < a.n; n0 += kGroupedBlockTokens) {
        const int64_t n1 = a.n - n0 < kGroupedBlockTokens ? a.n : n0 + kGroupedBlockTokens;
        auto* x = s.x;
        for (int64_t n = n0; n < n1; n += 16)
            for (int64_t k = 0; k < a.K; k += kGroupK) (x++)->gather(a, n, k);
        for (int64_t tile = a.tile_begin; tile < a.tile_end; ++tile)
            grouped_tile<Tile>(a, tile, n0, n1, s);
    }
    tile_end();
}

#undef STERNA_PRODUCT
#endif

}  // namespace
