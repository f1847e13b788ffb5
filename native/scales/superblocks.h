// Linear layers of formats whose scales are whole numbers times one float of a super-block of 256 k: the
// K-quants of GGUF. A weight is d s_g level + d_m m_g, with groups g of 16 or of 32 k; activations have a
// scale s_x for every 32 k, as in groups.h. In ascending order of k, with one rounding for each fma:
//
//   T = fma(t1, s1, t0 s0)                                  of two groups of 16 k, or t0 s0 of one of 32; t = sum(level x)
//   p = fma(T, s_x, p)                                      over the eight T of a super-block, from 0
//   u = fma(m_g, float(sum(x)) s_x, u)                      over its groups, from 0
//   y = fma(p, d, y), then y = fma(u, d_m, y) where there are minima
//
// T is exact as a float, so that units may compute it in any way, where |s_g level| <= 32 * 128: 32 * 127 * 32 * 128 < 2^24.
// Where both have eight bits (iq4_ks, and iq5_ks and iq6_k on b8x16), each step may round.
// Where s_g level fits a byte (two and three bits), a panel for many tokens holds these products: then T is one
// sum over 32 k.
#pragma once
#include "layouts/layout.h"
#include "linear/linear.h"
#include "linear/panel.h"
#include "scales/grouped_panel.h"
#include "scales/groups.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

using sterna::kSuperK;

// Whether scales are odd numbers: a panel's bytes do not say.
enum class OddScales { kNo, kYes, kAsked };
template <class F>
constexpr OddScales kOddScalesOf = F::kRowBlocks == 0 ? OddScales::kAsked
                                   : F::kOddScales    ? OddScales::kYes
                                                      : OddScales::kNo;

// One tile's scales and minima, of groups of kSpan k, as its super-blocks pass by; `row` counts from the tile's first.
template <int kSpan, int kRows = 0, OddScales kOdd = OddScales::kNo>
struct SuperScales {
    ScaleType type;
    float unit;
    int given_rows;
    int64_t head_bytes, line_bytes,
        bytes;  // bytes of a super-block; a division by `group_k` would be slow
    const uint8_t* tile;

    SuperScales(const sterna::GroupScales& s, int64_t K, int64_t index, int row_blocks)
        : type(s.type),
          unit(s.unit),
          given_rows(row_blocks * sterna::kRowBlock),
          head_bytes(s.head_bytes(rows())),
          line_bytes(s.line_bytes(rows())),
          bytes(s.super_bytes(rows())),
          tile(s.data + index * (K / kSuperK) * bytes) {}
    SuperScales(const sterna::LinearArgs& a, int64_t index, int row_blocks)
        : SuperScales(a.groups, a.K, index, row_blocks) {}

    int rows() const { return kRows ? kRows : given_rows; }
    bool odd() const {
        return kOdd == OddScales::kYes || (kOdd == OddScales::kAsked && type >= ScaleType::kOdd4);
    }
    const uint8_t* head(int64_t k) const { return tile + k / kSuperK * bytes; }
    const uint8_t* line(int64_t k) const {
        return head(k) + head_bytes + k % kSuperK / kSpan * line_bytes;
    }
    // The floats of a super-block, and the whole numbers of a group.
    VF d(int64_t k, int row) const {
        if (odd()) return odd_d(k, row);
        if (type == ScaleType::kWide8) return f_load(reinterpret_cast<const float*>(head(k)) + row);
        return f_load_f16(reinterpret_cast<const uint16_t*>(head(k)) + row);
    }
    VF d_minimum(int64_t k, int row) const { return d(k, rows() + row); }
    VI whole(int64_t k, int row) const {
        if (odd()) return odd_whole(k, row);
        const uint8_t* at = line(k) + row;
        return type == ScaleType::kSuper4 ? i_and(i_load_u8(at), i_set1(15)) : i_load_i8(at);
    }
    VF scale(int64_t k, int row) const { return f_from_i(whole(k, row)); }
    // The scale twice, for each of a lane's two sums.
    VI pair(int64_t k, int row) const {
        const VI s = whole(k, row);
        return i_or(i_and(s, i_set1(0xFFFF)), i_shl<16>(s));
    }
    VF minimum(int64_t k, int row) const {
        const uint8_t* at = line(k) + row;
        return f_from_i(type == ScaleType::kSuper4 ? i_shr<4>(i_load_u8(at))
                                                   : i_load_i8(at + rows()));
    }

  private:
    // The word of four groups of kOdd3 that holds k.
    VI word(int64_t k, int row) const {
        const uint8_t* at = head(k) + k % kSuperK / 64 * 2 * line_bytes + row;
        return i_or(i_load_u8(at), i_shl<8>(i_load_u8(at + line_bytes)));
    }
    VI odd_whole(int64_t k, int row) const {
        const int group = static_cast<int>(k % kSuperK / kSpan);
        VI code;
        if (type == ScaleType::kOdd4) {
            const VI two = i_load_u8(head(k) + head_bytes + group / 2 * line_bytes + row);
            code = group % 2 ? i_shr<4>(two) : i_and(two, i_set1(15));
        } else {
            const VI four = word(k, row);
            const VI low = group % 4 == 0   ? four
                           : group % 4 == 1 ? i_shr<3>(four)
                           : group % 4 == 2 ? i_shr<6>(four)
                                            : i_shr<9>(four);
            code = i_and(low, i_set1(7));
        }
        return i_add(i_add(code, code), i_set1(1));
    }
    VF odd_d(int64_t k, int row) const {
        if (type == ScaleType::kOdd4)
            return f_mul(f_load_f16(reinterpret_cast<const uint16_t*>(head(k)) + row),
                         f_set1(unit));
        const int64_t k0 = k / kSuperK * kSuperK;
        const VI upper = i_set1(0xF000);
        VI bits = i_shr<12>(word(k0, row));
        bits = i_or(bits, i_shr<8>(i_and(word(k0 + 64, row), upper)));
        bits = i_or(bits, i_shr<4>(i_and(word(k0 + 128, row), upper)));
        bits = i_or(bits, i_and(word(k0 + 192, row), upper));
        int32_t words[kLanes];
        i_store(words, bits);
        uint16_t halves[kLanes];
        for (int i = 0; i < kLanes; ++i) halves[i] = static_cast<uint16_t>(words[i]);
        return f_mul(f_load_f16(halves), f_set1(unit));
    }
};

// A row's weights: level * (d s_g), plus d_m m_g, rounded once. The products of scales are exact, but where d is a float32
// they are rounded, too, as ggml rounds them.
template <class F>
void super_values(const sterna::RowArgs& a, const sterna::GroupScales& s) {
    F::row(a);
    constexpr int kRows = F::kRowBlocks * sterna::kRowBlock;
    const int in_tile = static_cast<int>(a.row % kRows), lane = in_tile % kLanes;
    const SuperScales<F::kSuperGroup, 0, kOddScalesOf<F>> scales(s, a.K, a.row / kRows,
                                                                 F::kRowBlocks);
    float scale[kLanes], minimum[kLanes] = {};
    for (int64_t k = 0; k < a.K; ++k) {
        if (k % F::kSuperGroup == 0) {
            const int row = in_tile - lane;
            f_store(scale, f_mul(scales.scale(k, row), scales.d(k, row)));
            if (s.minima) f_store(minimum, f_mul(scales.minimum(k, row), scales.d_minimum(k, row)));
        }
        const float level = a.out[k] - static_cast<float>(F::kSuperOffset);
        a.out[k] = s.minima ? static_cast<float>(double{level} * scale[lane] + minimum[lane])
                            : level * scale[lane];
    }
}

// Whether panels hold the products s_g level. b2, with scales 0..15, has them as they are, 0..45; b3, with scales
// -32..31, has 128 - s_g level, since -s_g level lies in [-128, 124]; where dot() takes signed bytes, it has
// -s_g level. Where pair sums are int16, codes have more room.
template <class F>
constexpr bool kScaled = !kPairSums16 && F::kSuperGroup == 16 && F::kSuperBits < 4;
constexpr int kNegatedOffset = kSignedDot ? 0 : 128;

// Turns the codes of a row block of a panel of K k into those products.
template <class F, bool kNegated>
inline void scale_panel(const SuperScales<F::kSuperGroup>& scales, int64_t K, int row_block,
                        uint8_t* panel) {
    static_assert(kNegated ? F::kSuperBits == 3 && F::kSuperOffset == 4
                           : F::kSuperBits == 2 && F::kSuperOffset == 0);  // ranges as above
    const VI even = i_set1(0x00FF00FF);
    for (int part = 0; part < kParts; ++part)
        for (int64_t k = 0; k < K; k += F::kSuperGroup) {
            VI s = scales.whole(k, row_block * sterna::kRowBlock + kLanes * part);
            if (kNegated) s = i_sub(i_set1(0), s);
            const VI factor = i_or(i_and(s, i_set1(0xFFFF)), i_shl<16>(s));
            // kNegatedOffset - offset * s in every byte
            const VI offset = w_mul(factor, i_set1(F::kSuperOffset * 0x10001));
            const VI byte = i_and(w_sub(i_set1(kNegatedOffset * 0x10001), offset), even);
            const VI added = w_mul(byte, i_set1(0x01010101));
            for (int64_t j = 0; j < F::kSuperGroup / 4; ++j) {
                uint8_t* at = panel + panel_at(K, row_block, part, k + 4 * j);
                const VI codes = i_load(at);
                VI product = b_select(even, w_mul(i_and(codes, even), factor),
                                      i_shl<8>(w_mul(w_shr<8>(codes), factor)));
                if (kNegated) product = b_add(product, added);
                i_store(at, product);
            }
        }
}

// The k over which pair sums of levels (times the unit of their place) fit int16 at their end; 0: none.
template <class F>
constexpr int kSuperPairSpan = [] {
    constexpr int kLevel = F::kSuperOffset ? F::kMaxByte - F::kSuperOffset < F::kSuperOffset
                                                 ? F::kSuperOffset
                                                 : F::kMaxByte - F::kSuperOffset
                                           : F::kMaxByte;
    return F::kSuperGroup == kGroupK && pairs_fit<F>(kLevel, kGroupK) ? kGroupK
           : pairs_fit<F>(kLevel, kGroupK / 2)                        ? kGroupK / 2
                                                                      : 0;
}();
// The format of few tokens, and the bytes of a panel.
template <class F>
using SuperSums = std::conditional_t<kSuperPairSpan<F> != 0, PairSums<F, kSuperPairSpan<F>>, F>;
template <class F>
using SuperPanel =
    std::conditional_t<kSuperPairSpan<F> != 0, PairSums<Even<AnyCodes>, kSuperPairSpan<F>>,
                       std::conditional_t<F::kDecodedOffsetX2 != 0, GroupPanel<F>, Even<AnyCodes>>>;

// The meaning of a panel's bytes, or of a format's codes, in their group.
enum class SuperCodes {
    kLevels,
    kOffset,  // levels plus a number, which SuperBlocks says
    kProducts,  // s_g level: sums over kGroupK are whole
    kNegated,  // kNegatedOffset - s_g level
};

// Calls body(n, g, place of its vector) for the outputs of N tokens x GN row blocks.
template <int GN, int N, class Body>
[[gnu::always_inline]] inline void each_output(Body body) {
    STERNA_UNROLL(8)
    for (int g = 0; g < GN; ++g) {
        STERNA_UNROLL(16)
        for (int n = 0; n < N; ++n) body(n, g, (n * GN + g) * kLanes);
    }
}
// Scales that the end of a super-block needs: the minimum of its group i, its d, and its d_m, of a row block. They are
// as stored, for the super-block at k and row blocks from row0 on.
template <int kSpan, int kRows, OddScales kOdd>
struct StoredEnd {
    static constexpr int kGroups = kSuperK / kSpan;
    const SuperScales<kSpan, kRows, kOdd>& scales;
    int64_t k;
    int row0;

    int row(int g) const { return row0 + g * sterna::kRowBlock; }
    VF minimum(int64_t i, int g) const { return scales.minimum(k + i * kSpan, row(g)); }
    VF d(int g) const { return scales.d(k, row(g)); }
    VF d_minimum(int g) const { return scales.d_minimum(k, row(g)); }
};
// As vectors that are prepared for a tile: q4_k takes 0.93 to 0.96 of the time of decoding them for each block of tokens.
template <int kSpan>
struct PreparedEnd {
    static constexpr int kGroups = kSuperK / kSpan, kVectors = kGroups + 2;
    const float* at;  // [row block, `stride` apart][kVectors]
    int64_t stride;

    VF minimum(int64_t i, int g) const { return f_load(at + g * stride + i * kLanes); }
    VF d(int g) const { return minimum(kGroups, g); }
    VF d_minimum(int g) const { return minimum(kGroups + 1, g); }
    // Prepares those of one row block.
    template <bool kNegated, int kRows, OddScales kOdd>
    static void prepare(const SuperScales<kSpan, kRows, kOdd>& scales, bool minima, int64_t k,
                        int row, float* out) {
        const StoredEnd<kSpan, kRows, kOdd> stored{scales, k, row};
        const VF d = stored.d(0);
        f_store(out + kGroups * kLanes, kNegated ? f_sub(f_set1(0.0f), d) : d);
        if (!minima) return;
        for (int i = 0; i < kGroups; ++i) f_store(out + i * kLanes, stored.minimum(i, 0));
        f_store(out + (kGroups + 1) * kLanes, stored.d_minimum(0));
    }
};

// Adds the minima of a super-block's group i to u; x: the factors of that group, of tokens from n0 on.
template <int GN, int N, class End>
[[gnu::always_inline]] inline void add_minima(const End& end, int64_t i, const float* x,
                                              int64_t stride, VF (&u)[N][GN]) {
    VF m[GN];
    STERNA_UNROLL(8)
    for (int g = 0; g < GN; ++g) m[g] = end.minimum(i, g);
    STERNA_UNROLL(16)
    for (int n = 0; n < N; ++n) {
        const VF factor = f_set1(x[n * stride]);
        STERNA_UNROLL(8)
        for (int g = 0; g < GN; ++g) u[n][g] = f_fma(m[g], factor, u[n][g]);
    }
}
// Ends a super-block: p, and where there are minima u, go to y. With kSummed u lies behind p, else it is summed here;
// x: the factors of its first group. All formats share it.
template <int GN, int N, bool kSummed, class End>
[[gnu::noinline]] void end_super(const End& end, bool minima, const float* x, int64_t stride,
                                 float* y) {
    float* const p = y + N * GN * kLanes;
    if (!minima) {
        each_output<GN, N>([&](int, int g, int at) {
            f_store(y + at, f_fma(f_load(p + at), end.d(g), f_load(y + at)));
            f_store(p + at, f_set1(0.0f));
        });
        return;
    }
    float* const u = p + N * GN * kLanes;
    VF sum[N][GN];
    each_output<GN, N>([&](int n, int g, int at) {
        sum[n][g] = kSummed ? f_load(u + at) : f_set1(0.0f);
        if (kSummed) f_store(u + at, f_set1(0.0f));
    });
    if (!kSummed)
        for (int64_t i = 0; i < End::kGroups; ++i) add_minima<GN, N>(end, i, x + i, stride, sum);
    STERNA_UNROLL(8)
    for (int g = 0; g < GN; ++g) {
        const VF d = end.d(g), d_minimum = end.d_minimum(g);
        STERNA_UNROLL(16)
        for (int n = 0; n < N; ++n) {
            const int at = (n * GN + g) * kLanes;
            const VF out = f_fma(f_load(p + at), d, f_load(y + at));
            f_store(y + at, f_fma(sum[n][g], d_minimum, out));
            f_store(p + at, f_set1(0.0f));
        }
    }
}

// Turns sums into outputs, as PlainGroups does, for groups of kSpan_ k. It keeps y and p, [n][g] each, and with kSpread
// u. With kSpread, one token's minima are added with the sums of their group. Else all minima of a super-block are
// added at its end: that takes no loads and stores of u, but with one token nothing is asked of memory meanwhile.
template <class F, int kSpan_, SuperCodes kCodes, bool kSpread>
struct SuperGroups {
    static constexpr int kX = kGroupK;
    static constexpr int kSpan = kSpan_;
    static constexpr bool kWhole =
        kCodes == SuperCodes::kProducts || kCodes == SuperCodes::kNegated;
    static constexpr int kSpans = [] {
        if constexpr (F::kPairs) return kGroupK / (F::kPairSpan < kSpan ? F::kPairSpan : kSpan);
        return kWhole ? 1 : kGroupK / kSpan;
    }();
    static constexpr int kFloats = kSpread ? 3 : 2;
    // Whether accumulators start at `taken`, in place.
    static constexpr bool kStarts = kCodes == SuperCodes::kOffset || kCodes == SuperCodes::kNegated;
    static_assert(!kStarts || F::kEvenOffset);
    using Terms = TokenTerms<kGroupK / kSpans, kSpan, kGroupK>;
    const sterna::LinearArgs& a;
    SuperScales<kSpan, kTileRowsOf<F>, kOddScalesOf<F>> scales;
    Terms terms;

    SuperGroups(const sterna::LinearArgs& args, int64_t tile, int row_blocks)
        : a(args), scales(args, tile, row_blocks), terms(args) {}
    static void begin(const sterna::LinearArgs& a, int offset) {
        Terms(a).template fill<F::kPairs>(a, -offset);
    }
    VI start(int n, int64_t k) const {
        return kStarts ? x_broadcast(terms.taken.row(n) + k * kSpans / kX) : F::zero();
    }

    // The part for a panel (grouped_panel.h): p adds up behind y until its super-block ends. The scale of each span is
    // prepared, unless sums have it already.
    static constexpr int kReady = kWhole ? 0 : kSpans, kInto = 1;
    static constexpr bool kGroupMinima = false;  // end_groups() adds them
    using Total = std::conditional_t<F::kPairs, VI, VF>;
    void finish_codes(const PanelTile&) const {}
    void ready(int64_t k, int row, float* out) const {
        for (int i = 0; i < kReady; ++i) {
            const int64_t at = k + i * (kX / kSpans);
            if constexpr (F::kPairs) {
                i_store(out + i * kLanes, scales.pair(at, row));
            } else {
                f_store(out + i * kLanes, scales.scale(at, row));
            }
        }
    }
    static Total add_span(int span, Total total, VI sum, const float* scale, int row_block) {
        if constexpr (F::kPairs) {
            const VI end = F::end(sum, i_load(scale), row_block);
            return span == 0 ? end : i_add(total, end);
        } else {
            const VF levels = f_from_i(F::settle(sum, row_block));
            if constexpr (kWhole) return levels;
            return span == 0 ? f_mul(levels, f_load(scale)) : f_fma(levels, f_load(scale), total);
        }
    }
    using Ends = PreparedEnd<kSpan>;
    static constexpr int kEnds = Ends::kVectors, kEndK = kSuperK;
    void ends(int64_t k, int row, float* out) const {
        Ends::template prepare<kCodes == SuperCodes::kNegated>(scales, a.groups.minima, k, row,
                                                               out);
    }
    template <int GN, int N>
    void end_groups(int64_t k, int n0, const float* ends, int64_t stride, float* y) const {
        end_super<GN, N, false>(Ends{ends, stride}, a.groups.minima, factors(n0, k),
                                terms.factor.width, y);
    }
    static VF add_to(VF p, Total total, VF, VF s_x) {
        if constexpr (F::kPairs) {
            return f_fma(f_from_i(total), s_x, p);
        } else {
            return f_fma(total, s_x, p);
        }
    }
    // Asks for an eighth of the next super-block's scales, so that all have come when this one ends.
    void ask_ahead(int64_t k) const {
        const int64_t part = scales.bytes * kGroupK / kSuperK;
        const uint8_t* from = scales.head(k) + scales.bytes + k % kSuperK / kGroupK * part;
        for (int64_t i = 0; i < part; i += kLine) prefetch_l2(from + i);
    }

    template <int GN>
    struct Kept {};  // each group has scales of its own

    template <int GN, int N>
    [[gnu::always_inline]] void add(int64_t k, int n0, int row0, const VI (&sums)[kSpans][N][GN],
                                    float* y, Kept<GN>* = nullptr) const {
        float* p = y + N * GN * kLanes;
        const auto scale_of = [&](int i, int g) {
            const int64_t at = k + i * (kGroupK / kSpans);
            const int row = row0 + g * sterna::kRowBlock;
            if constexpr (F::kPairs) {
                return scales.pair(at, row);
            } else {
                return scales.scale(at, row);
            }
        };
        decltype(scale_of(0, 0)) s[kSpans][GN];
        if constexpr (!kWhole) {
            STERNA_UNROLL(2)
            for (int i = 0; i < kSpans; ++i) {
                STERNA_UNROLL(8)
                for (int g = 0; g < GN; ++g) s[i][g] = scale_of(i, g);
            }
        }
        const auto scale = terms.scale;  // stores to y might change what `this` refers to
        STERNA_UNROLL(16)
        for (int n = 0; n < N; ++n) {
            const VF s_x = f_set1(scale.row(n0 + n)[k / kX]);
            STERNA_UNROLL(8)
            for (int g = 0; g < GN; ++g) {
                VF total;  // exact
                if constexpr (F::kPairs) {
                    VI sum = F::end(sums[0][n][g], s[0][g], g);
                    if constexpr (kSpans == 2) sum = i_add(sum, F::end(sums[1][n][g], s[1][g], g));
                    total = f_from_i(sum);
                } else {
                    const auto level_sum = [&](int i) {
                        return f_from_i(F::settle(sums[i][n][g], g));
                    };
                    total = level_sum(0);
                    if constexpr (!kWhole) total = f_mul(total, s[0][g]);
                    if constexpr (kSpans == 2) total = f_fma(level_sum(1), s[1][g], total);
                }
                float* to = p + (n * GN + g) * kLanes;
                f_store(to, f_fma(total, s_x, f_load(to)));
            }
        }
        const int64_t in_super = k % kSuperK;
        const StoredEnd<kSpan, kTileRowsOf<F>, kOddScalesOf<F>> end{scales, k - in_super, row0};
        const int64_t stride = terms.factor.width;
        if (spreads<N>() && a.groups.minima) {
            float* const u = p + N * GN * kLanes;
            VF sum[N][GN];
            each_output<GN, N>([&](int n, int g, int at) { sum[n][g] = f_load(u + at); });
            STERNA_UNROLL(2)
            for (int i = 0; i < kGroupK / kSpan; ++i)
                add_minima<GN, N>(end, in_super / kSpan + i, factors(n0, k) + i, stride, sum);
            each_output<GN, N>([&](int n, int g, int at) { f_store(u + at, sum[n][g]); });
        }
        if (in_super + kGroupK == kSuperK)
            end_super<GN, N, spreads<N>()>(end, a.groups.minima, factors(n0, end.k), stride, y);
    }

  private:
    // The factors of minima, of tokens from n0 on, from the group at k on.
    const float* factors(int n0, int64_t k) const { return terms.factor.row(n0) + k / kSpan; }
    template <int N>
    static constexpr bool spreads() {
        return kSpread && N == 1;
    }
};

// The code of level 0 as it is decoded, or of a panel's bytes.
template <class F, class Bytes = F>
constexpr int kLeftOffset = F::kSuperOffset - Bytes::kDecodedOffsetX2 / 2;
template <class F, class Bytes = F>
constexpr SuperCodes kSuperCodes =
    kLeftOffset<F, Bytes> ? SuperCodes::kOffset : SuperCodes::kLevels;

// Blocks of a format F: they add its offset, which the loops that it shares with others do not know.
template <class F, class Blocks, class Groups, class Bytes = F>
struct SuperBlocks : Blocks {
    static void begin(const sterna::LinearArgs& a) { Groups::begin(a, kLeftOffset<F, Bytes>); }
};
// Blocks whose panels hold products.
template <class F>
struct ScaledBlocks {
    static constexpr bool kNegated = F::kSuperOffset != 0;
    using Bytes = Even<AnyCodes>;
    using Groups = SuperGroups<Bytes, F::kSuperGroup,
                               kNegated ? SuperCodes::kNegated : SuperCodes::kProducts, false>;
    using Sweep = GroupedPanel<Bytes, Groups>;
    static void begin(const sterna::LinearArgs& a) {
        Groups::begin(a, kNegated ? kNegatedOffset : 0);
    }
    static uint8_t* scratch(const sterna::LinearArgs& a) { return Sweep::scratch(a); }
    static void prepare(const sterna::LinearArgs& a, const PanelTile& tile) {
        const SuperScales<F::kSuperGroup> scales(a, tile.index, tile.row_blocks);
        for (int g = 0; g < tile.row_blocks; ++g)
            scale_panel<F, kNegated>(scales, a.K, g, tile.bytes);
        Sweep::prepare(a, tile);
    }
};

}  // namespace
