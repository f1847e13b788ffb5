// Many tokens on vector units: a tile is decoded once into a panel of bytes, which stays in L2 while blocks
// of tokens sweep it. For each row block, and each native vector of it (4 k a lane), the panel has a run
// over k: with vectors of 256 bits, lines of all 16 rows would come from L2 twice.
//
// The loops that sweep a panel know the kind of its bytes and not the format, so a unit has them once for each
// kind, and not once for each of twenty formats.
#pragma once
#include <type_traits>

#include "layouts/layout.h"
#include "linear/linear.h"
#include "linear/row_pairs.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// The codes of the tile after a panel's. Blocks of tokens ask for them into L2, a few lines every kAskK k: lines asked for
// all at once would take a core's buffers for misses, and it would wait.
constexpr int64_t kAskK = 256, kMostAsked = int64_t{256} << 10;  // bytes
struct NextTile {
    const uint8_t *at, *end;
    int64_t share;  // bytes

    // turns: how often ask() is called, about.
    NextTile(const uint8_t* codes, int64_t bytes, int64_t turns)
        : at(codes),
          end(codes + (bytes < kMostAsked ? bytes : kMostAsked)),
          share((end - at + turns - 1) / turns) {}
    void ask() {
        const uint8_t* const stop = end - at < share ? end : at + share;
        for (; at < stop; at += kLine) prefetch_l2_surely(at);
    }
};

// A decoded tile, and the tokens that sweep it.
struct PanelTile {
    uint8_t* bytes;
    int64_t index;  // the tile's, in the matrix
    int row_blocks;
    NextTile& next;
    int16_t* words = nullptr;  // where bytes are PanelWords: [token from begin on][K], activations
    int begin = 0, end = 0;

    int64_t row(int row_block, int part) const {
        return (index * row_blocks + row_block) * sterna::kRowBlock + kLanes * part;
    }
};

// The offset in a panel of kc k of one native vector: a part of a row block at k. And the bytes of a whole panel.
constexpr int64_t panel_at(int64_t kc, int row_block, int part, int64_t k) {
    return (row_block * kParts + part) * kc * kLanes + k * kLanes;
}
constexpr int64_t panel_bytes(int64_t K, int row_blocks) { return row_blocks * K / 4 * kLine; }

// A tile alone is one stream, so the next page has to be asked for in good time: into L2, as the few lines that may be
// on their way to L1 are wanted for what is decoded next.
constexpr int64_t kPanelPrefetchBytes = 4096, kPanelNearBytes = 1024;

// Groups [G0, G0 + GN) of the steps that hold k in [0, kc), as a panel of their own, of kc k or of kPanelK. A format's
// kinds of scales share it.
template <class F, int G0, int GN, bool kPrefetch = false, int64_t kPanelK = 0>
[[gnu::noinline]] void decode_panel(const sterna::LevelTable& table, const uint8_t* step,
                                    int64_t kc, uint8_t* out) {
    const typename F::Levels levels(table);
    for (int64_t k = 0; k < kc; k += F::kStepK, step += F::kStepBytes) {
        if constexpr (kPrefetch) {
            STERNA_UNROLL(8)
            for (int line = 0; line < F::kStepBytes; line += kLine) {
                prefetch_l2(step + kPanelPrefetchBytes + line);
                prefetch(step + kPanelNearBytes + line);
            }
        }
        STERNA_UNROLL(8)
        for (int j = 0; j < F::kStepK; j += 4) {
            VI w[F::kRowBlocks];
            for (int part = 0; part < kParts; ++part) {
                decode_codes<F>(levels, step, part, j, w);
                STERNA_UNROLL(8)
                for (int g = 0; g < GN; ++g)
                    i_store(out + panel_at(kPanelK ? kPanelK : kc, g, part, k + j), w[G0 + g]);
            }
        }
    }
}

// The offset in a tile of the step that holds k, and the decoder of [k0, k0 + kc). A layout whose steps are not read one
// by one has its own.
template <class F>
inline int64_t bytes_before(int64_t k) {
    return k / F::kStepK * F::kStepBytes;
}
template <class F, int G0, int GN, bool kPrefetch = false>
inline void decode_tile(const sterna::LevelTable& levels, const uint8_t* tile, int64_t k0,
                        int64_t kc, uint8_t* out) {
    if constexpr (F::kLookup || F::kByBlocks) {
        static_assert(G0 == 0 && GN == F::kRowBlocks);
        F::decode_tile(tile, k0, kc, out);
    } else {
        decode_panel<F, G0, GN, kPrefetch>(levels, tile + bytes_before<F>(k0), kc, out);
    }
}

// Whether a panel is summed in runs of int16 pair sums, as long as they fit: one addition in place of two
// instructions for each product.
template <class P>
constexpr bool kPanelRuns = kPairSums16 && !P::kPairs && kRunSteps<P::kMaxByte> >= 4;

// The activations of a panel of the bytes P, from token n0 on, and how far those of two tokens are apart.
template <class P>
using PanelX = std::conditional_t<P::kWords, int16_t, int8_t>;
template <class P>
inline const PanelX<P>* panel_x(const sterna::LinearArgs& a, const PanelTile& tile, int n0) {
    if constexpr (P::kWords) {
        return tile.words + (n0 - tile.begin) * a.K;
    } else {
        return a.xq + n0 * a.ldx;
    }
}
template <class P>
inline int64_t panel_ldx(const sterna::LinearArgs& a) {
    return P::kWords ? a.K : a.ldx;
}

// Adds four k of N tokens and GN row blocks of a panel of PanelWords, as panel_sums does.
template <int GN, int N, class V>
[[gnu::always_inline]] inline void add_words(const int16_t* x, int64_t ldx, const uint8_t* at,
                                             int64_t stride, V (&acc)[N][GN]) {
    STERNA_UNROLL(2)
    for (int odd = 0; odd < 2; ++odd) {
        V w[GN];
        STERNA_UNROLL(8)
        for (int g = 0; g < GN; ++g) {
            const V bytes = i_load(at + g * stride);
            w[g] = b_words(bytes, odd);
        }
        STERNA_UNROLL(16)
        for (int n = 0; n < N; ++n) {
            const VX two = x_load(x + n * ldx + 2 * odd);
            STERNA_UNROLL(8)
            for (int g = 0; g < GN; ++g) acc[n][g] = i_now(pair_dot(acc[n][g], w[g], two));
        }
    }
}

// Adds N tokens, x, `ldx` apart, and GN row blocks of a panel, `stride` bytes apart, from `at` on, over `count` k. Always
// inlined: a call would pass the accumulators in memory.
template <class P, int GN, int N>
[[gnu::always_inline]] inline void panel_sums(const PanelX<P>* x, int64_t ldx, const uint8_t* at,
                                              int64_t stride, int64_t count, VI (&acc)[N][GN]) {
    if constexpr (kRowPairs<P>) {
        row_pair_sums<typename P::Acc, GN, N>(x, ldx, at, stride, count, acc);
        return;
    }
    if constexpr (P::kWords) {
        for (int64_t k = 0; k < count; k += 4, at += 4 * kLanes)
            add_words<GN, N>(x + k, ldx, at, stride, acc);
        return;
    }
    const auto each = [](auto f) {
        STERNA_UNROLL(16)
        for (int n = 0; n < N; ++n) {
            STERNA_UNROLL(8)
            for (int g = 0; g < GN; ++g) f(n, g);
        }
    };
    for (int64_t k = 0; k < count;) {
        constexpr int64_t kRunK = 4 * kRunSteps<P::kMaxByte>;
        const int64_t end = kPanelRuns<P> && k + kRunK < count ? k + kRunK : count;
        VI run[N][GN];
        each([&](int n, int g) { run[n][g] = kPanelRuns<P> ? i_set1(0) : acc[n][g]; });
        for (; k < end; k += 4, at += 4 * kLanes) {
            VI w[GN];
            STERNA_UNROLL(8)
            for (int g = 0; g < GN; ++g) w[g] = i_load(at + g * stride);
            STERNA_UNROLL(16)
            for (int n = 0; n < N; ++n) {
                const VX four = x_load(x + n * ldx + k);
                STERNA_UNROLL(8)
                for (int g = 0; g < GN; ++g)
                    run[n][g] = kPanelRuns<P> ? run_dot(run[n][g], w[g], four)
                                              : P::dot(run[n][g], w[g], four);
            }
        }
        each([&](int n, int g) {
            acc[n][g] = kPanelRuns<P> ? run_end(acc[n][g], run[n][g]) : run[n][g];
        });
    }
}

// How blocks of tokens get their outputs where a row has one scale (or none: floats): straight from the decoder
// of F, or from a panel of F's bytes.
template <class F>
struct RowBlocks {
    using Sweep = RowBlocks;
    using Bytes = F;  // of a panel that is swept
    // begin: what a call computes once. scratch: where its scratch is free after that.
    static void begin(const sterna::LinearArgs&) {}
    static uint8_t* scratch(const sterna::LinearArgs& a) { return a.scratch; }
    // Called once for each panel, after it is decoded.
    static void prepare(const sterna::LinearArgs&, const PanelTile&) {}
    static void direct(const sterna::LinearArgs& a, int64_t tile, int64_t tile_stride, int count) {
        direct_rows<F>(a, tile, tile_stride, count);
    }
    // Tokens [n0, n0 + N), of which the first `done` have their outputs already, and row blocks from g0 on.
    template <int GN, int N>
    static void panel(const sterna::LinearArgs& a, const PanelTile& tile, int g0, int part, int n0,
                      int done) {
        VI acc[N][GN];
        STERNA_UNROLL(16)
        for (int n = 0; n < N; ++n) {
            STERNA_UNROLL(8)
            for (int g = 0; g < GN; ++g) acc[n][g] = F::zero();
        }
        const auto* x = panel_x<F>(a, tile, n0);
        const uint8_t* at = tile.bytes + panel_at(a.K, g0, part, 0);
        for (int64_t left = a.K; left > 0; left -= kAskK, x += kAskK, at += kAskK * kLanes) {
            tile.next.ask();
            panel_sums<F, GN, N>(x, panel_ldx<F>(a), at, panel_at(a.K, 1, 0, 0),
                                 left < kAskK ? left : kAskK, acc);
        }
        STERNA_UNROLL(16)
        for (int n = 0; n < N; ++n) {
            if (n < done) continue;
            STERNA_UNROLL(8)
            for (int g = 0; g < GN; ++g) finish<F>(a, acc[n][g], n0 + n, g, tile.row(g0 + g, part));
        }
    }
};

// Takes the tokens from n0 on, in blocks of N and last, smaller blocks of 6 and 4, which make every even number from 4 on.
// Where an odd number is left, the last block overlaps the one before, since a loop for each number would double the code.
// Needs kFewestTokens; fewer go straight from the decoder.
constexpr int kFewestTokens = 4;
template <class Blocks, int GN, int N>
inline void panel_tokens(const sterna::LinearArgs& a, const PanelTile& tile, int g0, int part,
                         int n0) {
    if constexpr (N > kFewestTokens) {
        const auto too_few = [&](int left) { return left > 0 && left < kFewestTokens - 1; };
        for (; tile.end - n0 >= N && !too_few(tile.end - n0 - N); n0 += N)
            Blocks::template panel<GN, N>(a, tile, g0, part, n0, 0);
        constexpr int kNext = N > 6 ? 6 : kFewestTokens;
        if (n0 < tile.end) panel_tokens<Blocks, GN, kNext>(a, tile, g0, part, n0);
    } else {
        for (; tile.end - n0 >= N; n0 += N) Blocks::template panel<GN, N>(a, tile, g0, part, n0, 0);
        if (n0 < tile.end)
            Blocks::template panel<GN, N>(a, tile, g0, part, tile.end - N, N - (tile.end - n0));
    }
}

// Sweeps the row blocks of a tile, a few at a time. With few registers two: a weight then serves three times as many
// tokens as row blocks, and L2 keeps up. kRest is the rest of tiles that have three row blocks.
constexpr int kSweepRowBlocks = kPanelVectors < 4 ? 2 : 4;
constexpr int kPanelSums = kPanelVectors * kPanelTokens;
template <class Blocks, int GN>
inline void sweep_row_blocks(const sterna::LinearArgs& a, const PanelTile& tile, int g0) {
    for (int part = 0; part < kParts; ++part)
        panel_tokens<Blocks, GN, kPanelSums / GN>(a, tile, g0, part, tile.begin);
}
template <class Blocks, int kRest>
[[gnu::noinline]] void sweep_panel(const sterna::LinearArgs& a, const PanelTile& tile) {
    int g0 = 0;
    for (; g0 + kSweepRowBlocks <= tile.row_blocks; g0 += kSweepRowBlocks)
        sweep_row_blocks<Blocks, kSweepRowBlocks>(a, tile, g0);
    if constexpr (kRest > 0) sweep_row_blocks<Blocks, kRest>(a, tile, g0);
}

// About how often a sweep asks for codes.
inline int64_t turns_of_sweep(int64_t K, int n, int row_blocks) {
    constexpr int kTokens = kPanelSums / kSweepRowBlocks;
    const int blocks = (row_blocks + kSweepRowBlocks - 1) / kSweepRowBlocks * kParts;
    const int64_t turns = K > 0 ? (K + kAskK - 1) / kAskK : 1;
    return blocks * ((n + kTokens - 1) / kTokens) * turns;
}

// Activations as words: of so many tokens at a time that L1 has room for those of a block. A last block of fewer than
// kFewestTokens joins the one before.
constexpr int64_t kWordBytes = int64_t{48} << 10;
constexpr int word_tokens(int64_t K) {
    const int64_t bytes = K > 0 ? 2 * K : 2;  // of a token
    const auto blocks = static_cast<int>(kWordBytes / bytes / kPanelTokens);
    return kPanelTokens * (blocks > 2 ? blocks : 2);
}
template <class P>
constexpr int64_t word_bytes(int64_t K) {
    return P::kWords ? (word_tokens(K) + kFewestTokens - 1) * K * 2 : 0;
}
inline void put_words(const sterna::LinearArgs& a, const PanelTile& tile) {
    for (int n = tile.begin; n < tile.end; ++n)
        for (int64_t k = 0; k < a.K; k += 2 * kLanes)
            i_store(tile.words + (n - tile.begin) * a.K + k, w_load_i8(a.xq + n * a.ldx + k));
}

// Calls sweep() for parts of the tokens that have the tile's words, or for all tokens.
template <class P, class Sweep>
inline void with_words(const sterna::LinearArgs& a, PanelTile& tile, Sweep sweep) {
    tile.begin = 0, tile.end = a.n;
    if constexpr (P::kWords) {
        for (const int some = word_tokens(a.K); tile.begin < a.n; tile.begin = tile.end) {
            tile.end = a.n - tile.begin < some + kFewestTokens ? a.n : tile.begin + some;
            put_words(a, tile);
            sweep();
        }
    } else {
        sweep();
    }
}

template <class F, class Blocks>
void linear_panel(const sterna::LinearArgs& a) {
    using Bytes = typename Blocks::Sweep::Bytes;
    Blocks::begin(a);
    uint8_t* const scratch = Blocks::scratch(a);
    const int64_t turns = turns_of_sweep(a.K, a.n, F::kRowBlocks);
    for (int64_t index = a.tile_begin; index < a.tile_end; ++index) {
        const uint8_t* const codes = a.codes + index * a.tile_bytes;
        NextTile next(codes + a.tile_bytes, index + 1 < a.tile_end ? a.tile_bytes : 0, turns);
        PanelTile tile{scratch + word_bytes<Bytes>(a.K), index, F::kRowBlocks, next,
                       reinterpret_cast<int16_t*>(scratch)};
        decode_tile<F, 0, F::kRowBlocks, true>(a.levels, codes, 0, a.K, tile.bytes);
        Blocks::prepare(a, tile);
        if constexpr (kRowPairs<Bytes>)
            pair_rows(tile.bytes, panel_bytes(a.K, F::kRowBlocks), Bytes::zero());
        with_words<Bytes>(a, tile, [&] {
            sweep_panel<typename Blocks::Sweep, F::kRowBlocks % kSweepRowBlocks>(a, tile);
        });
    }
}

}  // namespace
