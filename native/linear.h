// Linear layers: the loops that every format and instruction set share.
//
// A format decodes one step (a few consecutive k of all rows of a tile) into groups of 16 rows. Few
// tokens take it straight from the decoder (tile_block), so a GEMV reads weights at the speed of
// memory. For many tokens an integer format is decoded once into a panel of bytes, which blocks of
// tokens then sweep: panel.h, or tiles.h where there is a matrix unit. Integer formats sum exactly in
// any order; float formats sum over k in ascending order with one fused multiply-add each, whatever
// the blocking.
#pragma once
#include "kernel_table.h"
#include "unroll.h"

namespace {

// How far ahead of the arithmetic weights are asked for.
constexpr int64_t kPrefetchBytes = 2048;
constexpr int kParts = 16 / kLanes;  // native vectors of a 16-row group

// Tokens whose accumulators stay in registers.
template <class F>
constexpr int kTokens = kAccumulators / F::kGroups > 1 ? kAccumulators / F::kGroups : 1;

// The vectors of one step's activations that a format multiplies with.
template <class F>
inline auto broadcast_x(const sterna::LinearArgs& a, int64_t n, int64_t k) {
    if constexpr (F::kInteger) {
        return x_broadcast(a.xq + n * a.ldx + k);  // x_block is 1 wherever this runs
    } else {
        return f_set1(a.xf[n * a.ldx + k]);
    }
}

// Twice the offset that is still in what the format's decoder gives.
template <class F>
constexpr int offset2(int z2) {
    return z2 - F::kTaken2;
}

// A dot product of signed bytes, of which |w| <= 128: pairs of products fit int16.
inline VI dot_signed(VI acc, VI w, VI x) { return dot(acc, b_abs(w), b_signed(x, w)); }

// One native vector of outputs from an integer accumulator:
// t = 2 * acc - z2 * sum(x) fits int32 (kMaxIntegerK); then one rounding per operation.
template <class F>
inline VF scaled(const sterna::LinearArgs& a, VI acc, int64_t n, int group, int64_t row) {
    const VI sum = F::settle(acc, group);
    const VI t = i_sub(i_add(sum, sum), i_set1(offset2<F>(a.z2) * a.x_sum[n]));
    return f_mul(f_from_i(t), f_mul(f_load(a.scale + row), f_set1(a.x_scale[n])));
}

// And from a float sum: rows of powers of two have a scale.
inline VF scaled_float(const sterna::LinearArgs& a, VF sum, int64_t row) {
    return a.scale ? f_mul(sum, f_load(a.scale + row)) : sum;
}

inline void finish_output(const sterna::LinearArgs& a, VF y, int64_t n, int64_t row) {
    if (row >= a.M) return;  // a tile may reach further beyond M than the outputs' padding
    if (a.residual) y = f_add(f_load(a.residual + n * a.ldy + row), y);
    f_store(a.y + n * a.ldy + row, y);
}

template <class F>
inline void finish(const sterna::LinearArgs& a, typename F::Acc acc, int64_t n, int group,
                   int64_t row) {
    if constexpr (F::kInteger) {
        if (row < a.M) finish_output(a, scaled<F>(a, acc, n, group, row), n, row);
    } else {
        finish_output(a, row < a.M ? scaled_float(a, acc, row) : acc, n, row);
    }
}

// Several tiles are read side by side, a short turn each. A core's own requests for memory are few; its
// prefetcher has many more, but follows a stream within a page of 4 KiB alone, so that one stream
// stops at the end of every page: four reach the speed of memory, one three quarters of it.
using sterna::kStreams;
constexpr int kTurnBytes = 512;
// Steps of a round, of which a turn has whole ones: two where C runs take one dot product of each.
template <class F, int C>
constexpr int kRoundSteps = F::kStepK / F::kDotK >= C ? 1 : C;
template <class F>
constexpr int64_t kTurnK =
    (kTurnBytes + 2 * F::kStepBytes - 1) / (2 * F::kStepBytes) * 2 * F::kStepK;

// How many products of bytes up to kByte with activations an int16 holds, a pair of them at a time.
template <int kByte>
constexpr int kRunSteps = 32767 / (kByte * 127 * 2);
// Whether a run goes on with the sum: in int32, or floats, which must stay in order. Else it has pair sums in
// int16, and is added at its end.
template <class F>
constexpr bool kGoesOn = !(kPairSums16 && F::kRuns);
// Whether a run over so many k holds its sums.
template <class F>
constexpr bool run_fits(int64_t k) {
    if constexpr (kGoesOn<F>) {
        return true;
    } else {
        return k / F::kDotK <= kRunSteps<F::kMaxByte>;
    }
}
template <class F>
inline typename F::Acc run_on(typename F::Acc run, typename F::Acc w, typename F::Acc x) {
    if constexpr (kGoesOn<F>) {
        return F::dot(run, w, x);
    } else {
        return run_dot(run, w, x);
    }
}
// `c` counts the runs.
template <class F>
inline typename F::Acc run_added(typename F::Acc sum, typename F::Acc run, [[maybe_unused]] int c) {
    if constexpr (!kGoesOn<F>) {
        return run_end(sum, run);
    } else if constexpr (F::kInteger) {
        return c == 0 ? run : i_add(sum, run);
    } else {
        return run;
    }
}

// Accumulators of N tokens x P native parts of a tile.
template <class F, int N, int P>
using Sums = typename F::Acc[N][P][F::kGroups];

// Tokens [n0, n0 + N) and parts [part0, part0 + P) over k in [k0, k1), which start at `step`.
// Consecutive dot products go to C runs, which hides their latency; floats must stay in order, so
// there C is 1.
template <class F, int N, int P, int C>
inline void tile_turn(const sterna::LinearArgs& a, const uint8_t* step, int64_t k0, int64_t k1,
                      int n0, int part0, Sums<F, N, P>& sums) {
    constexpr int G = F::kGroups, U = kRoundSteps<F, C>;
    static_assert(run_fits<F>(kTurnK<F>));
    static_assert(U <= 2 && 64 % (U * F::kStepK) == 0);  // K and turns are whole rounds
    Sums<F, N, P> run[C];
    STERNA_UNROLL(8)
    for (int c = 0; c < C; ++c) STERNA_UNROLL(8)
    for (int n = 0; n < N; ++n) STERNA_UNROLL(8)
    for (int p = 0; p < P; ++p) STERNA_UNROLL(8)
    for (int g = 0; g < G; ++g) run[c][n][p][g] = kGoesOn<F> && c == 0 ? sums[n][p][g] : F::zero();
    for (int64_t k = k0; k < k1; k += F::kStepK * U) {
        STERNA_UNROLL(8)
        for (int u = 0; u < U; ++u, step += F::kStepBytes) {
            if constexpr (N <= 2) {  // two: the planes of an exact head
                STERNA_UNROLL(8)
                for (int line = 0; line < F::kStepBytes; line += 64)
                    prefetch(step + kPrefetchBytes + line);
            }
            STERNA_UNROLL(8)
            for (int j = 0; j < F::kStepK; j += F::kDotK) {
                auto& to = run[(u * F::kStepK + j) / F::kDotK % C];
                typename F::Acc w[P][G];
                STERNA_UNROLL(8)
                for (int p = 0; p < P; ++p) F::decode(step, part0 + p, j, w[p]);
                STERNA_UNROLL(8)
                for (int n = 0; n < N; ++n) {
                    const auto x = broadcast_x<F>(a, n0 + n, k + u * F::kStepK + j);
                    STERNA_UNROLL(8)
                    for (int p = 0; p < P; ++p) STERNA_UNROLL(8)
                    for (int g = 0; g < G; ++g) to[n][p][g] = run_on<F>(to[n][p][g], w[p][g], x);
                }
            }
        }
    }
    STERNA_UNROLL(8)
    for (int c = 0; c < C; ++c) STERNA_UNROLL(8)
    for (int n = 0; n < N; ++n) STERNA_UNROLL(8)
    for (int p = 0; p < P; ++p) STERNA_UNROLL(8)
    for (int g = 0; g < G; ++g) sums[n][p][g] = run_added<F>(sums[n][p][g], run[c][n][p][g], c);
}

// Tokens of tiles side by side: their sums over a stretch of k, the tiles taking turns.
template <class F, int N>
struct StreamSums {
    static constexpr int G = F::kGroups;
    // One token: all parts of a line together where their accumulators fit.
    static constexpr int P = N == 1 && kParts * G <= kAccumulators ? kParts : 1;
    static constexpr int C = N == 1 && F::kInteger && P * G <= 4 ? 2 : 1;
    Sums<F, N, P> sums[kStreams][kParts / P];

    // Tokens [n0, n0 + N) of `count` <= kStreams tiles, `apart` tiles apart, over k in [k0, k1).
    [[gnu::always_inline]] void run(const sterna::LinearArgs& a, int64_t tile, int64_t apart,
                                    int count, int n0, int64_t k0, int64_t k1) {
        for (auto& tile_sums : sums)
            for (auto& part : tile_sums)
                for (auto& token : part)
                    for (auto& vectors : token)
                        for (auto& acc : vectors) acc = F::zero();
        const uint8_t* codes = a.codes + tile * a.tile_bytes + k0 / F::kStepK * F::kStepBytes;
        for (int64_t k = k0; k < k1;
             k += kTurnK<F>, codes += kTurnK<F> / F::kStepK * F::kStepBytes) {
            const int64_t end = k + kTurnK<F> < k1 ? k + kTurnK<F> : k1;
            for (int s = 0; s < count; ++s)
                for (int part = 0; part < kParts; part += P)
                    tile_turn<F, N, P, C>(a, codes + s * apart * a.tile_bytes, k, end, n0, part,
                                          sums[s][part / P]);
        }
    }
    typename F::Acc at(int s, int part, int n, int g) const {
        return sums[s][part / P][n][part % P][g];
    }
};

// Tokens [n0, n0 + N) of `count` <= kStreams tiles, `apart` tiles apart.
template <class F, int N>
inline void tile_block(const sterna::LinearArgs& a, int64_t tile, int64_t apart, int count,
                       int n0) {
    constexpr int G = F::kGroups;
    if constexpr (F::kInteger) {  // wanted at the end, from memory
        for (int i = 0; i < count * G; ++i)
            prefetch(a.scale + ((tile + i / G * apart) * G + i % G) * sterna::kGroupRows);
    }
    StreamSums<F, N> sums;
    sums.run(a, tile, apart, count, n0, 0, a.K);
    for (int s = 0; s < count; ++s)
        for (int part = 0; part < kParts; ++part)
            for (int n = 0; n < N; ++n)
                for (int g = 0; g < G; ++g)
                    finish<F>(a, sums.at(s, part, n, g), n0 + n, g,
                              ((tile + s * apart) * G + g) * sterna::kGroupRows + kLanes * part);
}

template <class Blocks, int N>
inline void tile_tokens(const sterna::LinearArgs& a, int64_t tile, int64_t apart, int count, int n0,
                        int tokens) {
    if (tokens >= N) {
        Blocks::template direct<N>(a, tile, apart, count, n0);
    } else if constexpr (N > 1) {
        tile_tokens<Blocks, N - 1>(a, tile, apart, count, n0, tokens);
    }
}

// A chunk's tiles, side by side: f(tile, apart, count). A stream is a quarter of a chunk, so that it goes
// on from one tile to the next; what is left makes fewer streams.
template <class Tiles>
inline void side_by_side(const sterna::LinearArgs& a, Tiles tiles) {
    const int64_t length = (a.tile_end - a.tile_begin) / kStreams;
    for (int64_t i = 0; i < length; ++i) tiles(a.tile_begin + i, length, kStreams);
    const int64_t rest = a.tile_begin + length * kStreams;
    if (rest < a.tile_end) tiles(rest, 1, static_cast<int>(a.tile_end - rest));
}

// Tokens straight from the decoder.
template <class F, class Blocks>
void linear_direct(const sterna::LinearArgs& a) {
    Blocks::begin(a);
    side_by_side(a, [&](int64_t tile, int64_t apart, int count) {
        for (int n = 0; n < a.n; n += kTokens<F>)
            tile_tokens<Blocks, kTokens<F>>(a, tile, apart, count, n, a.n - n);
    });
}

// What formats share of an integer dot product. A format says in kMaxByte how much it decodes at most. A run
// of products ends with its turn; where pair sums are int16 it has to fit there, or kRuns says that runs are
// int32.
struct IntegerDot {
    static constexpr bool kInteger = true, kRowScales = true, kGroupScales = true, kRuns = true;
    static constexpr int kSourceBytes = 1;  // of a level
    static constexpr int kSuperGroup = 0;  // k of a group of the super-blocks that it may have
    static constexpr bool (*valid)(const uint8_t*, int64_t, int) = nullptr;
    // Tokens that go straight through the decoder, kTokens at a time: a panel that so few use would cost more.
    static constexpr int kDirectTokens = 8;
    // Whether there are kernels for activations with a scale for each kLongGroupK.
    static constexpr bool kLongGroups = false;
    // Whether z2 is even, so that levels are whole numbers. Then in_place() is the inverse of settle().
    static constexpr bool kEvenOffset = false;
    // Whether levels reach 128, which is decoded as 255 and lacks 1 (formats/pot4.h).
    static constexpr bool kTop = false;
    // Twice what the decoder takes away from codes: 0 where they stay unsigned.
    static constexpr int kTaken2 = 0;
    static constexpr int64_t kBlockUnit = 64;  // k that may be decoded alone: a multiple of 64
    static constexpr int kDotK = 4;
    using Acc = VI;
    static VI zero() { return i_set1(0); }
    static VI dot(VI acc, VI w, VI x) { return ::dot(acc, w, x); }
    // The sum of a group of rows from its accumulator, where a field may stay in place; and back.
    static VI settle(VI acc, int) { return acc; }
    static VI in_place(VI sum, int) { return sum; }
};

// What a float format F shares with others. A group of 16 rows is decoded by itself, as an exact head wants it.
constexpr int kFloatGroups = 4;
template <class F>
struct FloatDot {
    static constexpr bool kInteger = false, kRowScales = true, kGroupScales = false, kRuns = false;
    static constexpr int kSourceBytes = 2;  // of a weight to be packed
    static constexpr bool kBf16Tiles =
        false;  // whether steps are lines of a matrix unit's bf16 tiles
    static constexpr int kSuperGroup = 0;
    static constexpr bool (*valid)(const uint8_t*, int64_t, int) = nullptr;
    static constexpr int kDotK = 1;
    static constexpr int kGroups = kFloatGroups;
    static constexpr int kDirectTokens = 2 * (kAccumulators / kGroups);
    using Acc = VF;
    static VF zero() { return f_set1(0.0f); }
    static VF dot(VF acc, VF w, VF x) { return f_fma(w, x, acc); }
    static void decode(const uint8_t* step, int part, int j, VF* w) {
        for (int f = 0; f < kGroups; ++f)
            w[f] = F::decode_group(step + f * (F::kStepBytes / kGroups), part, j);
    }
};

}  // namespace
