// Few tokens of a format with scales in groups, straight from the decoder; grouped_panel.h has many. plain_groups.h and
// superblocks.h turn a group's sums into outputs.
#pragma once
#include "layouts/layout.h"
#include "linear/linear.h"
#include "linear/panel.h"
#include "scales/lookup_groups.h"
#include "scales/plain_groups.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// Stores outputs, [token][row block] of `count` tokens from n0 on, of which the first `done` have theirs already. The
// first row block starts at `row` of the matrix, whose tiles have `tile_rows`.
[[gnu::noinline]] inline void store_outputs(const sterna::LinearArgs& a, int64_t row, int tile_rows,
                                            int row_blocks, int n0, int count, const float* y,
                                            int done = 0) {
    for (int n = done; n < count; ++n)
        for (int g = 0; g < row_blocks; ++g) {
            const int64_t at = row + g * sterna::kRowBlock;
            const VF sum = f_load(y + (n * row_blocks + g) * kLanes);
            put_output(a, scaled_groups(a, sum, at, tile_rows), n0 + n, at);
        }
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
            even_blocks(a.n, kMost, [&](int n0, int tokens) {
                const int64_t row = (tile + s * tile_stride) * F::kRowBlocks * sterna::kRowBlock;
                for (int part = 0; part < kParts; ++part)
                    store_outputs(a, row + kLanes * part, kTileRows<F>, F::kRowBlocks, n0, tokens,
                                  block(s, n0) + part * tokens * kOfPart);
            });
    }
};

// Whether the compiler unrolls all steps of a group. With 16 registers and dot products that is 1.03 to 1.08 times as fast.
constexpr bool kUnrollsGroups = kLanes == 8 && !kPairSums16;

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
// `turn` k of each tile in turn. A turn may be a single group, so that what all turns have in common is made once. Codes
// begin at codes_k.
template <class F, class Groups, int N>
[[gnu::noinline]] void grouped_turns(const Groups& of_tile, Stream<Groups, F::kRowBlocks>* streams,
                                     int count, int64_t k0, int64_t k1, int64_t turn, int n0,
                                     int64_t codes_k = 0) {
    constexpr int G = F::kRowBlocks, kSpan = kGroupK / Groups::kSpans;
    // With several spans, the next one hides the latency of a run, so that one run is enough.
    constexpr bool kOne = Groups::kSpans == 1;
    constexpr int P = kOne ? Block<F, N>::P : 1, C = kOne ? Block<F, N>::C : 1;
    constexpr int kOfPart = Groups::kFloats * N * G * kLanes;
    static_assert(kSpan % (kRoundSteps<F, C> * F::kStepK) == 0 && run_fits<F>(kSpan));
    const sterna::LinearArgs a = of_tile.a;  // stores to y cannot change copies
    const typename F::Levels levels(a.levels);
    Groups groups = of_tile;
    for (int64_t from = k0; from < k1; from += turn)
        for (int s = 0; s < count; ++s) {
            Stream<Groups, G>& stream = streams[s];
            groups.scales.tile = stream.scales;
            const uint8_t* codes = stream.codes;
            float* y = stream.y + n0 * kParts * Groups::kFloats * G * kLanes;
            const int64_t end = from + turn < k1 ? from + turn : k1;
            for (int64_t k = from; k < end; k += kGroupK) {
                if (k < 0) __builtin_unreachable();  // else divisions of k take four instructions
                STERNA_FENCE();  // else outputs are carried along in the registers that sums need
                groups.ask_ahead(k);
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
                            for (int p = 0; p < P; ++p) {
                                STERNA_UNROLL(8)
                                for (int g = 0; g < G; ++g)
                                    sums[sum_at<F, P>(n, p, g)] = F::in_place(start, g);
                            }
                        }
                        int64_t span_end = at + kSpan;
                        if (!kUnrollsGroups) STERNA_HIDDEN(span_end);
                        tile_turn<F, N, P, C>(a, levels,
                                              codes + (at - codes_k) / F::kStepK * F::kStepBytes,
                                              at, span_end, n0, part, sums);
                        STERNA_UNROLL(8)
                        for (int p = 0; p < P; ++p) {
                            STERNA_UNROLL(8)
                            for (int n = 0; n < N; ++n) {
                                STERNA_UNROLL(8)
                                for (int g = 0; g < G; ++g)
                                    flat[p][i][n][g] = sums[sum_at<F, P>(n, p, g)];
                            }
                        }
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

// Runs `count` tiles, `tile_stride` apart, straight from the decoder.
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

// Runs `count` tiles of a format F that is decoded by super-blocks, in the form Few.
template <class F, class Few, class Groups>
inline void direct_blocks(const sterna::LinearArgs& a, int64_t tile, int64_t tile_stride,
                          int count) {
    constexpr int kMost = kGroupTokens<Few>;
    DirectOutputs<Few, Groups, kMost> outputs(a, count);
    const Groups groups(a, tile, F::kRowBlocks);
    alignas(64) uint8_t block[sterna::kSuperK * kTileRows<F>];
    for (int s = 0; s < count; ++s) {
        const int64_t index = tile + s * tile_stride;
        Stream<Groups, F::kRowBlocks> stream{};
        stream.codes = block;
        stream.scales = Groups(a, index, F::kRowBlocks).scales.tile;
        stream.y = outputs.block(s, 0);
        for (int64_t k = 0; k < a.K; k += sterna::kSuperK) {
            F::decode_steps(a.codes + index * a.tile_bytes + bytes_before<F>(k), sterna::kSuperK,
                            Few::place(block));
            const int64_t end = k + sterna::kSuperK;
            token_blocks<kMost>(a.n, [&](auto tokens, int n0) {
                grouped_turns<Few, Groups, decltype(tokens)::value>(groups, &stream, 1, k, end,
                                                                    end - k, n0, k);
            });
        }
    }
    outputs.store(a, tile, tile_stride, count);
}

// Computes `count` tiles with long groups: the sums of a whole group, then their part of the outputs.
template <class F, class Groups>
inline void direct_long_groups(const sterna::LinearArgs& a, int64_t tile, int64_t tile_stride,
                               int count) {
    constexpr int G = F::kRowBlocks;
    DirectOutputs<F, Groups, kTokens<F>> outputs(a, count);
    std::conditional_t<F::kLookup, LookupSums<F>, DirectSums<F>> sums;
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
                    const VI* sum = sums.part(s, n0, N, part);
                    STERNA_UNROLL(8)
                    for (int n = 0; n < N; ++n) {
                        STERNA_UNROLL(8)
                        for (int g = 0; g < G; ++g) flat[0][n][g] = sum[n * G + g];
                    }
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
// Scratch bytes in addition to a panel of K k: what grouped_panel.h prepares, for each 16 k of a row two floats at most and
// for each super-block of it two more, and the outputs of a block.
template <class F>
constexpr int64_t grouped_scratch(int64_t K) {
    const int64_t row = K / sterna::kSumK * 2 + K / sterna::kSuperK * 2;
    const int64_t scales = F::kRowBlocks * sterna::kRowBlock * row;
    return (scales + kMostFloats * kPanelSums * kLanes) * int64_t{sizeof(float)};
}

// The blocks of tokens that linear.h calls, of a format F straight from the decoder.
template <class F, class Groups>
struct GroupedBlocks {
    static void begin(const sterna::LinearArgs& a) {
        Groups::begin(a);
        if constexpr (F::kLookup) LookupSums<F>::begin(a);
    }
    static void direct(const sterna::LinearArgs& a, int64_t tile, int64_t tile_stride, int count) {
        if constexpr (Groups::kX == kGroupK) {
            direct_groups<F, Groups>(a, tile, tile_stride, count);
        } else {
            direct_long_groups<F, Groups>(a, tile, tile_stride, count);
        }
    }
};

// The same, of a format F that is decoded by super-blocks.
template <class F, class Few, class Groups>
struct DecodedBlocks {
    static void begin(const sterna::LinearArgs& a) { Groups::begin(a); }
    static void direct(const sterna::LinearArgs& a, int64_t tile, int64_t tile_stride, int count) {
        direct_blocks<F, Few, Groups>(a, tile, tile_stride, count);
    }
};

}  // namespace
