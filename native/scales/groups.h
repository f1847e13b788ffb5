// Linear layers of integer formats whose weights and activations have a scale for each group of k.
//
// Activations have one for every 32 k, or 256, weights for a multiple of that. So every 32 (256) k the
// exact sum of a group becomes a float and is added to the output, in ascending order:
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

// Rows of a tile: a constant where F is a format, and not the bytes of a panel, of which kTileRowsOf is 0.
template <class F>
constexpr int kTileRowsOf = 0;
template <class F>
    requires requires { F::kRowBlocks; }
constexpr int kTileRowsOf<F> = F::kRowBlocks * sterna::kRowBlock;

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
    void fill(const sterna::LinearArgs& a, int z) const {
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
    // Whether accumulators start at `taken`, so that they end as the sum of levels.
    static constexpr bool kStarts = F::kEvenOffset && kGroup == kGroupK;
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
    // Asks for the scales to come: for one token into L2, since loads that miss L1 have few places (linear.h).
    template <int N>
    void ask_ahead(int64_t k) const {
        ask_for<N == 1>(scales.at(k) + kScalesAhead);
        ask_for<N == 1>(scales.at(k) + kScalesAhead + kLine);
    }

    // The part that pair_panel.h uses, which has no minima. ready: a group's scale; factor and scaled: the factors
    // of a lane's two sums and of their total; kInto: the outputs that it is added to; end_groups() follows every
    // end_k() k.
    static constexpr int kInto = 0;
    VI ready(int64_t k, int row) const { return i_bits(scales.scale(scales.at(k), row)); }
    static VI factor(VI) { return i_set1(0x10001); }
    static VF scaled(VI s, VF s_x) { return f_mul(f_bits(s), s_x); }
    int64_t end_k() const { return a.K; }
    template <int GN, int N>
    static void end_groups(int64_t, int, int, float*) {}

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
                VI t;
                if constexpr (F::kPairs) {
                    t = F::end(sums[0][n][g], i_set1(0x10001), g);
                } else {
                    t = F::settle(sums[0][n][g], g);
                }
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
};

// Stores the outputs of GN row blocks, the first of which starts at `row` of the matrix.
template <int GN, int N>
inline void store_outputs(const sterna::LinearArgs& a, int64_t row, int n0, const float* y,
                          int done = 0) {
    for (int n = done; n < N; ++n)
        for (int g = 0; g < GN; ++g)
            finish_output(a, f_load(y + (n * GN + g) * kLanes), n0 + n,
                          row + g * sterna::kRowBlock);
}

// The most tokens of a block: scales and outputs take registers too, and six tokens x 4 row blocks spill (q4_0, 512-bit
// vectors, weights in L2: 84 us for one block of six, 54 for two of three).
template <class F>
constexpr int kGroupTokens = kTokens<F> < 4 ? kTokens<F> : 4;

// Outputs of few tokens x tiles side by side, in the order of Groups::add: blocks of tokens, then parts.
template <class F, class Groups, int kMost>
struct DirectOutputs {
    static constexpr int kOfPart = Groups::kFloats * F::kRowBlocks * kLanes,
                         kOfToken = kParts * kOfPart;
    float y[kMostStreams][kFewTokens * kOfToken];

    DirectOutputs(const sterna::LinearArgs& a, int count) {
        for (int s = 0; s < count; ++s)
            for (int i = 0; i < a.n * kOfToken; i += kLanes) f_store(y[s] + i, f_set1(0.0f));
    }
    float* block(int s, int n0) { return y[s] + n0 * kOfToken; }
    void store(const sterna::LinearArgs& a, int64_t tile, int64_t tile_stride, int count) {
        for (int s = 0; s < count; ++s)
            token_blocks<kMost>(a.n, [&](auto tokens, int n0) {
                constexpr int N = decltype(tokens)::value;
                const int64_t row = (tile + s * tile_stride) * F::kRowBlocks * sterna::kRowBlock;
                for (int part = 0; part < kParts; ++part)
                    store_outputs<F::kRowBlocks, N>(a, row + kLanes * part, n0,
                                                    block(s, n0) + part * N * kOfPart);
            });
    }
};

// The scalar unit is there for checking: its vectors take several registers, and its text would grow.
constexpr bool kKeepsScales = STERNA_ISA_RANK != 0;

// One of the tiles that are read side by side: where it is read, and the outputs of its tokens.
template <class Groups, int G>
struct Stream {
    const uint8_t* codes;
    const uint8_t* scales;
    float* y;
    typename Groups::template Kept<G> kept[kParts];
};

// Adds tokens [n0, n0 + N) of `count` tiles over k in [k0, k1) to their blocks of outputs: straight from the decoder,
// `turn` k of each tile in turn. A turn may be a single group, so that what all turns have in common is made once.
template <class F, class Groups, int N>
[[gnu::noinline]] void grouped_turns(const Groups& of_tile, Stream<Groups, F::kRowBlocks>* streams,
                                     int count, int64_t k0, int64_t k1, int64_t turn, int n0) {
    constexpr int G = F::kRowBlocks, kSpan = kGroupK / Groups::kSpans;
    // With several spans, the next one hides the latency of a run, so that one run is enough.
    constexpr bool kOne = Groups::kSpans == 1;
    constexpr int P = kOne ? Block<F, N>::P : 1, C = kOne ? Block<F, N>::C : 1;
    constexpr int kOfPart = Groups::kFloats * N * G * kLanes;
    static_assert(kSpan % (kRoundSteps<F, C> * F::kStepK) == 0 && run_fits<F>(kSpan));
    const sterna::LinearArgs a = of_tile.a;  // what is stored to y cannot change copies
    Groups groups = of_tile;
    for (int64_t from = k0; from < k1; from += turn)
        for (int s = 0; s < count; ++s) {
            Stream<Groups, G>& stream = streams[s];
            groups.scales.tile = stream.scales;
            const uint8_t* codes = stream.codes;
            float* y = stream.y + n0 * kParts * Groups::kFloats * G * kLanes;
            const int64_t end = from + turn < k1 ? from + turn : k1;
            for (int64_t k = from; k < end; k += kGroupK) {
                STERNA_FENCE();  // else outputs are carried along in the registers that sums need
                groups.template ask_ahead<N>(k);
                STERNA_UNROLL(2)
                for (int part = 0; part < kParts; part += P) {
                    VI flat[P][Groups::kSpans][N][G];
                    STERNA_UNROLL(2)
                    for (int i = 0; i < Groups::kSpans; ++i) {
                        const int64_t at = k + i * kSpan;
                        VI sums[N * P * G];
                        STERNA_UNROLL(8)
                        for (int n = 0; n < N; ++n) {
                            const VI start = groups.start(n0 + n, at);
                            STERNA_UNROLL(8)
                            for (int p = 0; p < P; ++p) STERNA_UNROLL(8)
                            for (int g = 0; g < G; ++g)
                                sums[sum_at<F, P>(n, p, g)] = F::in_place(start, g);
                        }
                        tile_turn<F, N, P, C>(a, codes + at / F::kStepK * F::kStepBytes, at,
                                              at + kSpan, n0, part, sums);
                        STERNA_UNROLL(8)
                        for (int p = 0; p < P; ++p) STERNA_UNROLL(8)
                        for (int n = 0; n < N; ++n) STERNA_UNROLL(8)
                        for (int g = 0; g < G; ++g) flat[p][i][n][g] = sums[sum_at<F, P>(n, p, g)];
                    }
                    STERNA_UNROLL(4)
                    for (int p = 0; p < P; ++p)
                        groups.template add<G, N>(k, n0, kLanes * (part + p), flat[p],
                                                  y + (part + p) * kOfPart,
                                                  kKeepsScales ? &stream.kept[part + p] : nullptr);
                }
            }
        }
}

// `count` tiles, `tile_stride` tiles tile_stride, straight from the decoder.
template <class F, class Groups>
inline void direct_groups(const sterna::LinearArgs& a, int64_t tile, int64_t tile_stride,
                          int count) {
    constexpr int kMost = kGroupTokens<F>;
    DirectOutputs<F, Groups, kMost> outputs(a, count);
    // A turn has whole groups, and for a tile alone at least a super-block of them.
    constexpr int64_t kGroupBytes = kGroupK / F::kStepK * F::kStepBytes;
    const int64_t asked = a.reading.turn_bytes / kGroupBytes * kGroupK;
    const int64_t least = count == 1 ? sterna::kSuperK : kGroupK;
    const int64_t turn = asked > least ? asked : least;
    const Groups groups(a, tile, F::kRowBlocks);
    Stream<Groups, F::kRowBlocks> streams[kMostStreams];
    for (int s = 0; s < count; ++s) {
        const int64_t index = tile + s * tile_stride;
        streams[s].codes = a.codes + index * a.tile_bytes;
        streams[s].scales = Groups(a, index, F::kRowBlocks).scales.tile;
        streams[s].y = outputs.block(s, 0);
    }
    // Blocks of tokens change with each turn, so that all but the first find its lines in L1.
    const int64_t step = a.n <= kMost ? a.K : turn;
    for (int64_t k = 0; k < a.K; k += step) {
        const int64_t end = k + step < a.K ? k + step : a.K;
        token_blocks<kMost>(a.n, [&](auto tokens, int n0) {
            grouped_turns<F, Groups, decltype(tokens)::value>(groups, streams, count, k, end, turn,
                                                              n0);
        });
    }
    outputs.store(a, tile, tile_stride, count);
}

// Computes `count` tiles with long groups: the sums of a whole group, then their part of the outputs.
template <class F, class Groups>
inline void direct_long_groups(const sterna::LinearArgs& a, int64_t tile, int64_t tile_stride,
                               int count) {
    constexpr int G = F::kRowBlocks;
    DirectOutputs<F, Groups, kTokens<F>> outputs(a, count);
    DirectSums<F> sums;
    for (int64_t k = 0; k < a.K; k += sterna::kLongGroupK) {
        for (int s = 0; s < count; ++s) {
            const TileScales<kTileRowsOf<F>> scales(a, tile + s * tile_stride, G);
            for (int line = 0; line < scales.rows() * 2; line += kLine)
                prefetch(scales.at(k) + line);
        }
        sums.run(a, tile, tile_stride, count, k, k + sterna::kLongGroupK);
        for (int s = 0; s < count; ++s) {
            const Groups groups(a, tile + s * tile_stride, G);
            token_blocks<kTokens<F>>(a.n, [&](auto tokens, int n0) {
                constexpr int N = decltype(tokens)::value;
                for (int part = 0; part < kParts; ++part) {
                    VI flat[1][N][G];
                    sums.template part<N>(s, n0, part, flat[0]);
                    groups.template add<G, N>(k, n0, kLanes * part, flat,
                                              outputs.block(s, n0) + part * N * outputs.kOfPart);
                }
            });
        }
    }
    outputs.store(a, tile, tile_stride, count);
}

// Bytes of the terms of any kind of groups, at most.
constexpr int64_t token_terms_bytes(int64_t K, int64_t n) {
    return TokenTerms<sterna::kSumK, sterna::kSumK, kGroupK>::bytes(K, n);
}

constexpr int kMostFloats = 2;
// Bytes beside a panel of K k: the outputs of a block, and the scales that pair_panel.h prepares.
template <class F>
constexpr int64_t grouped_scratch(int64_t K) {
    const int64_t scales =
        kPairSums16 ? F::kRowBlocks * sterna::kRowBlock * (K / sterna::kSumK) * 4 : 0;
    return scales + kMostFloats * kPanelSums * kLanes * int64_t{sizeof(float)};
}

// The blocks of tokens that linear.h and panel.h call, of a format F straight from the decoder or of a panel of the
// bytes F. A block's outputs lie behind the panel in scratch.
template <class F, class Groups>
struct GroupedBlocks {
    using Sweep = GroupedBlocks;
    using Bytes = F;
    static void begin(const sterna::LinearArgs& a) { Groups::begin(a); }
    static uint8_t* scratch(const sterna::LinearArgs& a) { return Groups::Terms::behind(a); }
    static void prepare(const sterna::LinearArgs&, const PanelTile&) {}
    static void direct(const sterna::LinearArgs& a, int64_t tile, int64_t tile_stride, int count) {
        if constexpr (Groups::kX == kGroupK) {
            direct_groups<F, Groups>(a, tile, tile_stride, count);
        } else {
            direct_long_groups<F, Groups>(a, tile, tile_stride, count);
        }
    }
    // Sums over [k, end). A function of its own: what follows would take registers from its accumulators. It is told the
    // end and not how many k there are: of a constant number of steps GCC 12 peels some, and 24 accumulators go through
    // memory at each (prompts of q4_0 on AVX-512: 58 instead of 110 tokens/s).
    template <int GN, int N>
    [[gnu::noinline]] static void group_sums(const Groups& groups, const uint8_t* at, int64_t k,
                                             int64_t end, int n0, VI (&sums)[N][GN]) {
        VI acc[N][GN];
        STERNA_UNROLL(16)
        for (int n = 0; n < N; ++n) {
            const VI start = groups.start(n0 + n, k);
            STERNA_UNROLL(8)
            for (int g = 0; g < GN; ++g) acc[n][g] = F::in_place(start, g);
        }
        const int8_t* x = groups.a.xq + n0 * groups.a.ldx + k;
        panel_sums<F, GN, N>(groups.a, x, at, end - k, acc);
        STERNA_UNROLL(16)
        for (int n = 0; n < N; ++n) STERNA_UNROLL(8)
        for (int g = 0; g < GN; ++g) sums[n][g] = acc[n][g];
    }
    template <int GN, int N>
    static void panel(const sterna::LinearArgs& a, const PanelTile& tile, int g0, int part, int n0,
                      int done) {
        const Groups groups(a, tile.index, tile.row_blocks);
        const uint8_t* codes = tile.bytes + panel_at(a.K, g0, part, 0);
        auto* y = reinterpret_cast<float*>(tile.bytes + panel_bytes(a.K, tile.row_blocks));
        for (int i = 0; i < Groups::kFloats * N * GN; ++i) f_store(y + i * kLanes, f_set1(0.0f));
        static_assert(Groups::kFloats <= kMostFloats);
        constexpr int kSpan = Groups::kX / Groups::kSpans;
        for (int64_t k = 0; k < a.K; k += Groups::kX) {
            VI acc[Groups::kSpans][N][GN];
            STERNA_UNROLL(2)
            for (int i = 0; i < Groups::kSpans; ++i) {
                const int64_t from = k + i * kSpan;
                group_sums<GN, N>(groups, codes + from * kLanes, from, from + kSpan, n0, acc[i]);
            }
            groups.template add<GN, N>(k, n0, g0 * sterna::kRowBlock + kLanes * part, acc, y);
        }
        store_outputs<GN, N>(a, tile.row(g0, part), n0, y, done);
    }
};

}  // namespace
