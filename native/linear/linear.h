// Linear layers: the loops that every format and instruction set share.
//
// A format decodes one step (a few consecutive k of all rows of a tile) into row blocks. Few
// tokens take it straight from the decoder (tile_turn), so a GEMV reads weights at the speed of
// memory. For many tokens an integer format is decoded once into a panel of bytes, which blocks of
// tokens then sweep: panel.h, or tiles.h where there is a matrix unit. Integer formats sum exactly in
// any order; float formats sum over k in ascending order with one fused multiply-add each, whatever
// the blocking.
#pragma once
#include "layouts/layout.h"
#include "linear/output.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// Tokens whose accumulators stay in registers.
template <class F>
constexpr int kTokens = F::kSums / F::kRowBlocks > 1 ? F::kSums / F::kRowBlocks : 1;

// One step's activations, as a format multiplies with them.
template <class F>
inline auto step_x(const sterna::LinearArgs& a, int64_t n, int64_t k) {
    if constexpr (F::kInteger) {
        return x_load(a.xq + n * a.ldx + k);  // x_block is 1 wherever this runs
    } else {
        return f_set1(a.xf[n * a.ldx + k]);
    }
}

// Twice the offset that the decoder has left in the codes.
template <class F>
constexpr int offset_x2(int zero_x2) {
    return zero_x2 - F::kDecodedOffsetX2;
}

// Makes one native vector of outputs from an integer accumulator:
// t = 2 * acc - zero_x2 * sum(x) fits int32 (kMaxIntegerK); then one rounding per operation.
template <class F>
inline VF scaled(const sterna::LinearArgs& a, VI acc, int64_t n, int row_block, int64_t row) {
    const VI sum = F::settle(acc, row_block);
    const VI t = i_sub(i_add(sum, sum), i_set1(offset_x2<F>(a.zero_x2) * a.x_sum[n]));
    return scaled_integer(a, f_from_i(t), n, row);
}

template <class F>
inline void finish(const sterna::LinearArgs& a, typename F::Acc acc, int64_t n, int row_block,
                   int64_t row) {
    if constexpr (F::kInteger) {
        if (row < a.M) put_output(a, scaled<F>(a, acc, n, row_block, row), n, row);
    } else {
        put_output(a, row < a.M ? scaled_float(a, acc, row) : acc, n, row);
    }
}

// Tiles are read one after the other, or a few side by side, a turn of each at a time. A core's own requests for
// memory are few; its prefetcher has more, but follows a stream within a page of 4 KiB alone. So a stream either
// asks for lines a page ahead by itself, or there are several streams. Machines differ in which is faster (reading.h).
using sterna::kMostStreams;
// Steps of a round: two where each of C runs takes one dot product of a step. A turn has whole rounds.
template <class F, int C>
constexpr int kRoundSteps = F::kStepK / F::kDotK >= C ? 1 : C;

// Whether a run continues the sum itself: in int32, or in floats, whose order must stay. Otherwise the run has a
// sum of its own, of pairs in int16 or of values that are no levels yet (kSigns), which is added at its end.
template <class F>
constexpr bool kRunIsSum = !F::kSigns && !(kPairSums16 && F::kRuns);
// A format whose accumulators are pair sums themselves, from a span's beginning to its end: a lane has two int16,
// the sums over the first two and over the last two of every four k. They may wrap on the way; the end has to fit.
template <class F, int kSpan>
struct PairSums : F {
    static constexpr bool kRuns = false, kPairs = true;
    static constexpr int kPairSpan = kSpan;  // k
    static VI dot(VI acc, VI w, VX x) { return i_now(run_dot(acc, w, x)); }
    static VI in_place(VI start, int row_block) {
        return w_mul(start, F::in_place(i_set1(0x10001), row_block));
    }
    // The span's sum, after each of a lane's two has been multiplied by its half of `factor`.
    template <class V>  // for units that have pair sums alone
    static VI end(V acc, V factor, int row_block) {
        return F::settle(pair_dot(i_set1(0), acc, factor), row_block);
    }
};
// Whether the pair sums of a span fit int16 at its end, if levels (or codes, times the unit of their place) are
// `most` at most.
template <class F>
constexpr bool pairs_fit(int most, int64_t span) {
    return kPairSums16 && kRunSteps<F::kMaxByte> >= 1 && most * 127 * (span / 2) <= 32767;
}
// Whether the sums of a run over k fit.
template <class F>
constexpr bool run_fits(int64_t k) {
    if constexpr (kRunIsSum<F>) {
        return true;
    } else {
        return k / F::kDotK <= kRunSteps<F::kMaxByte>;
    }
}
// The k that `bytes` of a tile hold: whole rounds, one at least.
template <class F>
constexpr int64_t rounds_k(int64_t bytes) {
    const int64_t rounds = bytes / (2 * F::kStepBytes);
    return (rounds > 0 ? rounds : 1) * 2 * F::kStepK;
}
template <class F, class X>
inline typename F::Acc run_on(typename F::Acc run, typename F::Acc w, X x) {
    if constexpr (kRunIsSum<F>) {
        return F::dot(run, w, x);
    } else if constexpr (F::kSigns) {
        return i_now(run_dot(run, w, x));
    } else {
        return run_dot(run, w, x);
    }
}
// Adds run number c to the sum.
template <class F>
inline typename F::Acc run_added(typename F::Acc sum, typename F::Acc run, [[maybe_unused]] int c) {
    // levels() has turned the run's pairs into those of levels, and the sum is of pairs as well.
    constexpr bool kAddsPairs = F::kPairs && F::kSigns;
    if constexpr (kAddsPairs) {
        return w_add(sum, run);
    } else if constexpr (!kRunIsSum<F>) {
        return run_end(sum, run);
    } else if constexpr (F::kInteger) {
        return c == 0 ? run : i_add(sum, run);
    } else {
        return run;
    }
}

// How a block of N tokens is summed: P native parts of a line together, in C runs.
template <class F, int N>
struct Block {
    static constexpr int G = F::kRowBlocks;
    // One token takes all parts of a line together, where their accumulators fit, in two runs. Where pair sums are
    // int16 there is no latency to hide, and the lookups of a format with signs need the registers.
    static constexpr bool kMany = N == 1 && !(F::kSigns && kPairSums16);
    static constexpr int P = kMany && kParts * G <= F::kSums ? kParts : 1;
    static constexpr int C = kMany && F::kInteger && !F::kPairs && P * G <= 4 ? 2 : 1;
};
// The place of a sum in a block: token n, part p of P, row block g.
template <class F, int P>
constexpr int sum_at(int n, int p, int g) {
    return (n * P + p) * F::kRowBlocks + g;
}

// Few tokens compute for longer with a line than it takes to load the next. So lines come from memory into L2 in good
// time, and leave L1 and its few buffers for misses alone.
constexpr int64_t kTokensAhead = 16384;  // bytes

// Adds tokens [n0, n0 + N) x parts [part0, part0 + P) over k in [k0, k1), whose codes start at `step`.
// Consecutive dot products go to C runs, which hides their latency; floats must stay in order, so
// there C is 1.
template <class F, int N, int P, int C>
inline void tile_turn(const sterna::LinearArgs& a, typename F::Levels levels, const uint8_t* step,
                      int64_t k0, int64_t k1, int n0, int part0, typename F::Acc* sums) {
    constexpr int G = F::kRowBlocks, U = kRoundSteps<F, C>;
    static_assert(U <= 2 && 64 % (U * F::kStepK) == 0);  // K and turns are whole rounds
    typename F::Acc run[C][N][P][G];
    STERNA_UNROLL(8)
    for (int c = 0; c < C; ++c) {
        STERNA_UNROLL(8)
        for (int n = 0; n < N; ++n) {
            STERNA_UNROLL(8)
            for (int p = 0; p < P; ++p) {
                STERNA_UNROLL(8)
                for (int g = 0; g < G; ++g)
                    run[c][n][p][g] =
                        kRunIsSum<F> && c == 0 ? sums[sum_at<F, P>(n, p, g)] : F::zero();
            }
        }
    }
    const int64_t ahead = N == 1 ? a.reading.prefetch_bytes : kTokensAhead;
    const bool into_l2 =
        N > 1 || (kReadLoop<F> == sterna::ReadLoop::kManyBits && a.reading.into_l2);
    for (int64_t k = k0; k < k1; k += F::kStepK * U) {
        STERNA_UNROLL(8)
        for (int u = 0; u < U; ++u, step += F::kStepBytes) {
            // The other parts read the same lines.
            if constexpr (F::kInCache) {
            } else if (part0 == 0 && into_l2) {
                STERNA_UNROLL(8)
                for (int line = 0; line < F::kStepBytes; line += kLine)
                    prefetch_l2(step + ahead + line);
            } else if (part0 == 0) {
                STERNA_UNROLL(8)
                for (int line = 0; line < F::kStepBytes; line += kLine)
                    prefetch(step + ahead + line);
            }
            STERNA_UNROLL(8)
            for (int j = 0; j < F::kStepK; j += F::kDotK) {
                auto& to = run[(u * F::kStepK + j) / F::kDotK % C];
                // Part by part: the weights of all would take the registers of their sums.
                STERNA_UNROLL(8)
                for (int p = 0; p < P; ++p) {
                    typename F::Acc w[G + F::kSigns];
                    decode_step<F>(levels, step, part0 + p, j, w);
                    STERNA_UNROLL(8)
                    for (int n = 0; n < N; ++n) {
                        const auto x = step_x<F>(a, n0 + n, k + u * F::kStepK + j);
                        const auto of = [&] {
                            if constexpr (F::kSigns)
                                return b_signed(x, w[G]);
                            else
                                return x;
                        }();
                        STERNA_UNROLL(8)
                        for (int g = 0; g < G; ++g) to[n][p][g] = run_on<F>(to[n][p][g], w[g], of);
                    }
                }
            }
        }
    }
    STERNA_UNROLL(8)
    for (int c = 0; c < C; ++c) {
        STERNA_UNROLL(8)
        for (int n = 0; n < N; ++n) {
            STERNA_UNROLL(8)
            for (int p = 0; p < P; ++p) {
                if constexpr (F::kSigns) F::levels(run[c][n][p]);
                STERNA_UNROLL(8)
                for (int g = 0; g < G; ++g) {
                    auto& sum = sums[sum_at<F, P>(n, p, g)];
                    sum = run_added<F>(sum, run[c][n][p][g], c);
                }
            }
        }
    }
}

// Calls body(first token, tokens) for blocks of `most` tokens at most, which differ in size by one at most.
template <class Body>
[[gnu::always_inline]] inline void even_blocks(int n, int most, Body body) {
    const int blocks = (n + most - 1) / most, size = (n + blocks - 1) / blocks;
    for (int n0 = 0; n0 < n; n0 += size) body(n0, n - n0 < size ? n - n0 : size);
}
// Calls body(Tokens<N>, first token) for them.
template <int N>
struct Tokens {
    static constexpr int value = N;
};
template <int N, class Body>
[[gnu::always_inline]] inline void with_tokens(int n, int n0, Body body) {
    if (n >= N) {
        body(Tokens<N>{}, n0);
    } else if constexpr (N > 1) {
        with_tokens<N - 1>(n, n0, body);
    }
}
template <int kMost, class Body>
[[gnu::always_inline]] inline void token_blocks(int n, Body body) {
    even_blocks(n, kMost, [&](int n0, int count) { with_tokens<kMost>(count, n0, body); });
}

// The sums of few tokens x tiles side by side. Every block of tokens takes a turn's lines before the next turn
// begins, so that all but the first find them in L1.
template <class F>
struct DirectSums {
    static constexpr int G = F::kRowBlocks, kOfToken = kParts * G;
    typename F::Acc sums[kMostStreams][kFewTokens * kOfToken];

    // Sums `count` tiles, `tile_stride` apart, over k in [k0, k1).
    void run(const sterna::LinearArgs& a, int64_t tile, int64_t tile_stride, int count, int64_t k0,
             int64_t k1) {
        for (int s = 0; s < count; ++s)
            for (int i = 0; i < a.n * kOfToken; ++i) sums[s][i] = F::zero();
        // A tile alone, and all its tokens together, need no turns.
        const bool alone = count == 1 && a.n <= kTokens<F>;
        const int64_t turn = alone ? k1 - k0 : rounds_k<F>(a.reading.turn_bytes);
        const uint8_t* codes = a.codes + tile * a.tile_bytes;
        for (int64_t k = k0; k < k1; k += turn) {
            const int64_t end = k + turn < k1 ? k + turn : k1;
            for (int s = 0; s < count; ++s) {
                const uint8_t* step =
                    codes + s * tile_stride * a.tile_bytes + k / F::kStepK * F::kStepBytes;
                token_blocks<kTokens<F>>(a.n, [&](auto tokens, int n0) {
                    take_turn<decltype(tokens)::value>(a, step, k, end, n0,
                                                       sums[s] + n0 * kOfToken);
                });
            }
        }
    }
    // The sums of a block of `count` tokens from n0 on and one part, of stream s: [token][row block]. Where parts are
    // summed together (Block), there is one token.
    const typename F::Acc* part(int s, int n0, int count, int part) const {
        return sums[s] + n0 * kOfToken + part * count * G;
    }

  private:
    // A function of its own for each N: its accumulators need all registers.
    template <int N>
    [[gnu::noinline]] static void take_turn(const sterna::LinearArgs& a, const uint8_t* step,
                                            int64_t k0, int64_t k1, int n0, typename F::Acc* sums) {
        constexpr int P = Block<F, N>::P;
        constexpr int64_t kRunK = rounds_k<F>(F::kRunBytes);
        static_assert(run_fits<F>(kRunK));
        const int64_t run = kRunIsSum<F> ? k1 - k0 : kRunK;
        const typename F::Levels levels(a.levels);
        for (int64_t k = k0; k < k1; k += run, step += run / F::kStepK * F::kStepBytes) {
            STERNA_UNROLL(2)
            for (int part = 0; part < kParts; part += P)
                tile_turn<F, N, P, Block<F, N>::C>(a, levels, step, k, k + run < k1 ? k + run : k1,
                                                   n0, part, sums + part * N * G);
        }
    }
};

// Runs `count` tiles, `tile_stride` apart, of a format with one scale a row.
template <class F>
inline void direct_rows(const sterna::LinearArgs& a, int64_t tile, int64_t tile_stride, int count) {
    constexpr int G = F::kRowBlocks;
    if constexpr (F::kInteger) {  // wanted at the end, from memory
        for (int i = 0; i < count * G; ++i)
            prefetch(a.scale + ((tile + i / G * tile_stride) * G + i % G) * sterna::kRowBlock);
    }
    DirectSums<F> sums;
    sums.run(a, tile, tile_stride, count, 0, a.K);
    for (int s = 0; s < count; ++s)
        even_blocks(a.n, kTokens<F>, [&](int n0, int count) {
            const int64_t row = (tile + s * tile_stride) * G * sterna::kRowBlock;
            for (int part = 0; part < kParts; ++part) {
                const typename F::Acc* sum = sums.part(s, n0, count, part);
                for (int n = 0; n < count; ++n, sum += G) {
                    STERNA_UNROLL(8)
                    for (int g = 0; g < G; ++g)
                        finish<F>(a, sum[g], n0 + n, g,
                                  row + g * sterna::kRowBlock + kLanes * part);
                }
            }
        });
}

// Calls tiles(first, tile_stride, count) for the tiles of a chunk that are read side by side. Each stream has an even
// part of the chunk, so that it continues from one tile to the next; the tiles left over make fewer streams. There are
// kFewest streams at least.
template <int kFewest = 1, class Tiles>
inline void side_by_side(const sterna::LinearArgs& a, Tiles tiles) {
    const int streams = a.reading.streams > kFewest ? a.reading.streams : kFewest;
    const int64_t length = (a.tile_end - a.tile_begin) / streams;
    for (int64_t i = 0; i < length; ++i) tiles(a.tile_begin + i, length, streams);
    const int64_t rest = a.tile_begin + length * streams;
    if (rest < a.tile_end) tiles(rest, 1, static_cast<int>(a.tile_end - rest));
}

// A layer of few tokens, which take the weights straight from the decoder.
template <class F, class Blocks>
void linear_direct(const sterna::LinearArgs& a) {
    static_assert(F::kDirectTokens <= kFewTokens);
    if (a.n == 0) return;
    Blocks::begin(a);
    // Tiles that are read side by side find the tables of lookups in L1.
    side_by_side<F::kLookup ? 2 : 1>(a, [&](int64_t tile, int64_t tile_stride, int count) {
        Blocks::direct(a, tile, tile_stride, count);
    });
}

}  // namespace
