// Linear layers of integer formats whose weights and activations have a scale for each group of k.
//
// Activations have one scale for every 32 (or 256) k, weights one for a multiple of that. So after every 32 (256) k
// the exact sum of a group becomes a float and is added to the output, in ascending order:
//
//   t = sum(level * x)                    exact; twice it where levels are halves (odd zero_x2)
//   y = fma(float(t), (s_w unit) s_x, y)
//   y = fma(m_w, float(sum(x)) s_x, y)    where groups have minima: weight = s_w level + m_w
#pragma once
#include "layouts/layout.h"
#include "linear/linear.h"
#include "linear/panel.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

using sterna::kGroupK;
using sterna::ScaleType;

// Rows of a tile, a constant where F is a format; 0 where F is the bytes of a panel.
template <class F>
constexpr int kTileRowsOf = F::kRowBlocks * sterna::kRowBlock;

// One tile's scales and minima, as its groups of k pass by.
template <int kRows = 0>
struct TileScales {
    const sterna::GroupScales& s;
    const uint8_t* tile;
    int given_rows;

    TileScales(const sterna::GroupScales& scales, int64_t K, int64_t index, int row_blocks)
        : s(scales),
          tile(s.data + index * s.tile_bytes(K, row_blocks * sterna::kRowBlock)),
          given_rows(row_blocks * sterna::kRowBlock) {}
    TileScales(const sterna::LinearArgs& a, int64_t index, int row_blocks)
        : TileScales(a.groups, a.K, index, row_blocks) {}

    int rows() const { return kRows ? kRows : given_rows; }
    const uint8_t* at(int64_t k) const { return tile + s.line_of(k) * s.line_bytes(rows()); }
    // The values of rows [row, row + kLanes) of the tile; `line` is at(k) for scales, rows() values further for minima.
    VF load(const uint8_t* line, int row) const {
        if (s.type == ScaleType::kF16)
            return f_load_f16(reinterpret_cast<const uint16_t*>(line) + row);
        // 2^(e - 127); 2^-127 is a denormal
        return f_bits(i_max(i_shl<23>(i_load_u8(line + row)), i_set1(1 << 22)));
    }
    VF scale(const uint8_t* line, int row) const { return f_mul(load(line, row), f_set1(s.unit)); }
    VF minimum(const uint8_t* line, int row) const {
        return load(line + rows() * s.value_bytes(), row);
    }
};

// The sum of level * x, or twice it where levels are halves: zero_x2 is odd there.
template <class F>
struct GroupOffset {
    VI odd;
    int z;
    explicit GroupOffset(int zero_x2)
        : odd(i_set1(zero_x2 % 2 ? -1 : 0)),
          z(zero_x2 % 2 ? offset_x2<F>(zero_x2) : offset_x2<F>(zero_x2) / 2) {}
    // `taken` is z times the sum of x.
    VI level_sum(VI code_sum, VI taken) const {
        if constexpr (!F::kEvenOffset) code_sum = i_add(code_sum, i_and(code_sum, odd));
        return i_sub(code_sum, taken);
    }
};

// A row's weights: level * scale, plus a minimum, each rounded.
template <class F>
void group_values(const sterna::RowArgs& a, const sterna::GroupScales& s, int zero_x2) {
    F::row(a);
    constexpr int kRows = F::kRowBlocks * sterna::kRowBlock;
    const int in_tile = static_cast<int>(a.row % kRows), lane = in_tile % kLanes;
    const TileScales<kRows> scales(s, (a.K + 63) / 64 * 64, a.row / kRows, F::kRowBlocks);
    float scale[kLanes], minimum[kLanes] = {};
    for (int64_t k = 0; k < a.K; ++k) {
        if (k % s.group_k == 0) {
            const uint8_t* line = scales.at(k);
            f_store(scale, scales.scale(line, in_tile - lane));
            if (s.minima) f_store(minimum, scales.minimum(line, in_tile - lane));
        }
        const float twice =
            2 * a.out[k] - static_cast<float>(zero_x2);  // the level, where zero_x2 is odd
        const float value = (zero_x2 % 2 ? twice : twice / 2) * scale[lane];
        a.out[k] = s.minima ? value + minimum[lane] : value;
    }
}

// The sum of x over kSpan k from k on.
template <int kSpan>
inline int32_t span_sum(const sterna::LinearArgs& a, int64_t n, int64_t k) {
    const int32_t* sums = a.x_sum + n * (a.ldx / sterna::kSumK) + k / sterna::kSumK;
    int32_t total = sums[0];
    for (int i = 1; i < kSpan / sterna::kSumK; ++i) total += sums[i];
    return total;
}

// The scale of a group of kX activations.
template <int kX = kGroupK>
inline float group_scale(const sterna::LinearArgs& a, int64_t n, int64_t k) {
    return a.x_scale[n * (a.ldx / kX) + k / kX];
}

// The factor of a group's minimum: float(sum of x) s_x.
template <int kSpan, int kX = kGroupK>
inline float span_factor(const sterna::LinearArgs& a, int64_t n, int64_t k) {
    return static_cast<float>(span_sum<kSpan>(a, n, k)) * group_scale<kX>(a, n, k);
}

// An array with a row of `width` values for each token.
template <class T>
struct TokenRows {
    T* at;
    int64_t width;
    T* row(int64_t n) const { return at + n * width; }
};

// The terms of groups of activations that are the same for all rows: their scales, and what a thread computes once
// for an operation, at the start of its scratch.
template <int kSpan, int kMinimumK, int kX>
struct TokenTerms {
    TokenRows<const float> scale;  // for every kX
    TokenRows<int32_t> taken;  // for every kSpan: from the sum of codes to that of levels
    TokenRows<float> factor;  // for every kMinimumK: what minima are multiplied with

    // The two halves of a lane: z times the sum of the first two of every four x of a span, and of the last two.
    static int32_t pair_of_sums(const int8_t* x, int z) {
        int first = 0, last = 0;
        if (z == 0) return 0;
        for (int i = 0; i < kSpan; i += 4) first += x[i] + x[i + 1], last += x[i + 2] + x[i + 3];
        return static_cast<int32_t>(static_cast<uint32_t>(z * first & 0xFFFF) |
                                    static_cast<uint32_t>(z * last) << 16);
    }

    explicit TokenTerms(const sterna::LinearArgs& a)
        : scale{a.x_scale, a.ldx / kX},
          taken{reinterpret_cast<int32_t*>(a.scratch), a.K / kSpan},
          factor{reinterpret_cast<float*>(taken.row(a.n)), a.K / kMinimumK} {}

    static constexpr int64_t bytes(int64_t K, int64_t n) {
        return (n * (K / kSpan + K / kMinimumK) * 4 + 63) / 64 * 64;
    }
    static uint8_t* behind(const sterna::LinearArgs& a) { return a.scratch + bytes(a.K, a.n); }

    // Fills `taken` with z times the sum of x, or times each of a lane's two sums (PairSums), and `factor`.
    template <bool kPairs>
    [[gnu::noinline]] void fill(const sterna::LinearArgs& a, int z) const {
        if (a.scratch_ready) return;
        for (int n = 0; n < a.n; ++n) {
            for (int64_t i = 0; i < taken.width; ++i) {
                const int64_t k = i * kSpan;
                taken.row(n)[i] =
                    kPairs ? pair_of_sums(a.xq + n * a.ldx + k, z) : z * span_sum<kSpan>(a, n, k);
            }
            if (!a.groups.minima) continue;
            for (int64_t i = 0; i < factor.width; ++i)
                factor.row(n)[i] = span_factor<kMinimumK, kX>(a, n, i * kMinimumK);
        }
    }
};

// Turns a group's sums into outputs where each group has a scale of its own, and with kMinima perhaps a minimum;
// superblocks.h does it for super-blocks.
template <class F, int kGroup, bool kMinima>
struct PlainGroups {
    static constexpr int kX = kGroup;  // k of a scale of activations
    static constexpr int kSpans = 1;  // groups, whose sums `add` takes
    static constexpr int kFloats = 1;  // vectors that it keeps for each of outputs
    // Whether accumulators start at `taken`, so that they end as the sum of levels: those of a panel do.
    static constexpr bool kStarts = F::kEvenOffset && (kGroup == kGroupK || kTileRowsOf<F> == 0);
    static_assert(!F::kPairs || kStarts);
    using Terms = TokenTerms<kGroup, kGroup, kGroup>;
    const sterna::LinearArgs& a;
    TileScales<kTileRowsOf<F>> scales;
    Terms terms;
    GroupOffset<F> offset;

    PlainGroups(const sterna::LinearArgs& args, int64_t tile, int row_blocks)
        : a(args), scales(args, tile, row_blocks), terms(args), offset(args.zero_x2) {}
    static void begin(const sterna::LinearArgs& a) {
        const int z = GroupOffset<F>(a.zero_x2).z;
        Terms(a).template fill<F::kPairs>(a, kStarts ? -z : z);
    }
    VI start(int n, int64_t k) const {
        return kStarts ? x_broadcast(terms.taken.row(n) + k / kX) : F::zero();
    }

    // The scales of row blocks, as floats, until the next line of them: activations have groups of their own in it.
    template <int GN>
    struct Kept {
        const uint8_t* line = nullptr;
        alignas(64) float scales[GN * kLanes];
    };

    static constexpr int kScalesAhead = 1024;  // bytes: of 8 groups of 64 rows
    // Asks for the scales to come, into L2, since loads that miss L1 have few places (linear.h).
    void ask_ahead(int64_t k) const {
        prefetch_l2(scales.at(k) + kScalesAhead);
        prefetch_l2(scales.at(k) + kScalesAhead + kLine);
    }

    // The part for a panel (grouped_panel.h): a group's scale and, with kMinima, its minimum are prepared.
    static constexpr int kReady = kMinima ? 2 : 1, kInto = 0;
    static constexpr bool kGroupMinima = kMinima;
    using Total = VF;
    // Doubles the codes where levels are halves.
    void finish_codes(const PanelTile& tile) const {
        if (a.zero_x2 % 2 == 0) return;
        const int64_t bytes = panel_bytes(a.K, tile.row_blocks);
        for (uint8_t* at = tile.bytes; at < tile.bytes + bytes; at += 4 * kLanes)
            i_store(at, b_add(i_load(at), i_load(at)));
    }
    void ready(int64_t k, int row, float* out) const {
        const uint8_t* line = scales.at(k);
        f_store(out, scales.scale(line, row));
        if constexpr (kMinima) f_store(out + kLanes, scales.minimum(line, row));
    }
    static Total add_span(int, Total, VI sum, const float*, int row_block) {
        return f_from_i(level_sum(sum, row_block));
    }
    static VF add_to(VF y, Total total, VF scale, VF s_x) {
        return f_fma(total, f_mul(scale, s_x), y);
    }
    static constexpr int kEnds = 0, kEndK = kX;
    template <int GN, int N>
    static void end_groups(int64_t, int, const float*, int64_t, float*) {}

    // y[n][g] += a group's sums of N tokens x GN row blocks, of which the first has row0 of the tile. The
    // outputs stay in memory: in registers they would drive the accumulators of the dot products out. kept: of the same
    // row blocks' last call, or none.
    template <int GN, int N>
    [[gnu::always_inline]] void add(int64_t k, int n0, int row0, const VI (&sums)[1][N][GN],
                                    float* y, Kept<GN>* kept = nullptr) const {
        const uint8_t* line = scales.at(k);
        VF s[GN];
        if (kept && line == kept->line) {
            STERNA_UNROLL(8)
            for (int g = 0; g < GN; ++g) s[g] = f_load(kept->scales + g * kLanes);
        } else {
            STERNA_UNROLL(8)
            for (int g = 0; g < GN; ++g) {
                s[g] = scales.scale(line, row0 + g * sterna::kRowBlock);
                if (kept) f_store(kept->scales + g * kLanes, s[g]);
            }
            if (kept) kept->line = line;
        }
        const Terms of = terms;  // stores to y might change what `this` refers to
        const int64_t i = k / kX;
        STERNA_UNROLL(16)
        for (int n = 0; n < N; ++n) {
            const VF s_x = f_set1(of.scale.row(n0 + n)[i]);
            const VI taken = kStarts ? F::zero() : x_broadcast(of.taken.row(n0 + n) + i);
            STERNA_UNROLL(8)
            for (int g = 0; g < GN; ++g) {
                VI t = level_sum(sums[0][n][g], g);
                if (!kStarts) t = offset.level_sum(t, taken);
                float* to = y + (n * GN + g) * kLanes;
                f_store(to, f_fma(f_from_i(t), f_mul(s[g], s_x), f_load(to)));
            }
        }
        if (!kMinima || !a.groups.minima) return;
        STERNA_UNROLL(8)
        for (int g = 0; g < GN; ++g) s[g] = scales.minimum(line, row0 + g * sterna::kRowBlock);
        STERNA_UNROLL(16)
        for (int n = 0; n < N; ++n) {
            const VF x = f_set1(of.factor.row(n0 + n)[i]);
            STERNA_UNROLL(8)
            for (int g = 0; g < GN; ++g) {
                float* to = y + (n * GN + g) * kLanes;
                f_store(to, f_fma(s[g], x, f_load(to)));
            }
        }
    }

  private:
    // The sum of a row block from its accumulator.
    static VI level_sum(VI sum, int row_block) {
        if constexpr (F::kPairs) {
            return F::end(sum, i_set1(0x10001), row_block);
        } else {
            return F::settle(sum, row_block);
        }
    }
};

}  // namespace
