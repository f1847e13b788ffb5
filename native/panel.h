// Many tokens on vector units: a tile is decoded once into a panel of bytes, which stays in L2 while blocks
// of tokens sweep it. For each group of rows, and each native vector of these (4 k a lane), it has a run over
// k: with vectors of 256 bits lines of all 16 rows would come from L2 twice.
#pragma once
#include "linear.h"
#include "unroll.h"

namespace {

constexpr int kLine = 64;  // bytes of 16 rows x 4 k

// Where a panel of kc k has the vector of a part of a group at k.
constexpr int64_t panel_at(int64_t kc, int group, int part, int64_t k) {
    return (group * kParts + part) * kc * kLanes + k * kLanes;
}

// A tile alone is one stream, so the next page has to be asked for in good time.
constexpr int64_t kPanelPrefetchBytes = 4096;

template <class F>
constexpr int64_t panel_scratch(int64_t K) {
    return F::kGroups * K / 4 * kLine;
}

// Groups [G0, G0 + GN) of the steps that hold k in [0, kc), as a panel of their own.
template <class F, int G0, int GN, bool kPrefetch = false>
inline void decode_panel(const uint8_t* step, int64_t kc, uint8_t* out) {
    for (int64_t k = 0; k < kc; k += F::kStepK, step += F::kStepBytes) {
        if constexpr (kPrefetch) {
            STERNA_UNROLL(8)
            for (int line = 0; line < F::kStepBytes; line += kLine)
                prefetch(step + kPanelPrefetchBytes + line);
        }
        STERNA_UNROLL(8)
        for (int j = 0; j < F::kStepK; j += 4) {
            VI w[F::kGroups];
            for (int part = 0; part < kParts; ++part) {
                F::decode(step, part, j, w);
                STERNA_UNROLL(8)
                for (int g = 0; g < GN; ++g) i_store(out + panel_at(kc, g, part, k + j), w[G0 + g]);
            }
        }
    }
}

// Where k starts in a tile, and [k0, k0 + kc) of it decoded; a layout not read step by step has its own.
template <class F>
inline int64_t bytes_before([[maybe_unused]] int64_t K, int64_t k) {
    if constexpr (requires { F::bytes_before(K, k); }) {
        return F::bytes_before(K, k);
    } else {
        return k / F::kStepK * F::kStepBytes;
    }
}
template <class F, int G0, int GN, bool kPrefetch = false>
inline void decode_tile(const uint8_t* tile, int64_t K, int64_t k0, int64_t kc, uint8_t* out) {
    if constexpr (requires { F::decode_tile(tile, K, k0, kc, out); }) {
        static_assert(G0 == 0 && GN == F::kGroups);
        F::decode_tile(tile, K, k0, kc, out);
    } else {
        decode_panel<F, G0, GN, kPrefetch>(tile + bytes_before<F>(K, k0), kc, out);
    }
}

// Where pairs of products are summed in int16, a run of them is, as long as it fits: one addition instead of
// two instructions for each product.
template <class F>
constexpr bool kPanelRuns = kPairSums16 && !F::kPairs && kRunSteps<F::kMaxByte> >= 4;

// Adds tokens [n0, n0 + N) x groups [G0, G0 + GN) of a tile over k in [k0, k1). Always inlined: a call would
// pass the accumulators in memory.
template <class F, int G0, int GN, int N>
[[gnu::always_inline]] inline void panel_sums(const sterna::LinearArgs& a, const uint8_t* panel,
                                              int64_t k0, int64_t k1, int n0, int part,
                                              VI (&acc)[N][GN]) {
    const auto each = [](auto f) {
        STERNA_UNROLL(16)
        for (int n = 0; n < N; ++n) STERNA_UNROLL(8)
        for (int g = 0; g < GN; ++g) f(n, g);
    };
    const int8_t* x = a.xq + n0 * a.ldx;
    const uint8_t* at = panel + panel_at(a.K, G0, part, k0);
    for (int64_t k = k0; k < k1;) {
        constexpr int64_t kRunK = 4 * kRunSteps<F::kMaxByte>;
        const int64_t end = kPanelRuns<F> && k + kRunK < k1 ? k + kRunK : k1;
        VI run[N][GN];
        each([&](int n, int g) { run[n][g] = kPanelRuns<F> ? i_set1(0) : acc[n][g]; });
        for (; k < end; k += 4, at += 4 * kLanes) {
            VI w[GN];
            STERNA_UNROLL(8)
            for (int g = 0; g < GN; ++g) w[g] = i_load(at + panel_at(a.K, g, 0, 0));
            STERNA_UNROLL(16)
            for (int n = 0; n < N; ++n) {
                const VI four = x_broadcast(x + n * a.ldx + k);
                STERNA_UNROLL(8)
                for (int g = 0; g < GN; ++g)
                    run[n][g] = kPanelRuns<F> ? run_dot(run[n][g], w[g], four)
                                              : F::dot(run[n][g], w[g], four);
            }
        }
        each([&](int n, int g) {
            acc[n][g] = kPanelRuns<F> ? run_end(acc[n][g], run[n][g]) : run[n][g];
        });
    }
}

// How blocks of tokens come to their outputs where a row has one scale (or none: floats).
template <class F>
struct RowBlocks {
    // What a call computes once, and where its scratch is free.
    static void begin(const sterna::LinearArgs&) {}
    static uint8_t* scratch(const sterna::LinearArgs& a) { return a.scratch; }
    // A panel just decoded.
    static void prepare(const sterna::LinearArgs&, int64_t, uint8_t*) {}
    static void direct(const sterna::LinearArgs& a, int64_t tile, int64_t apart, int count) {
        direct_rows<F>(a, tile, apart, count);
    }
    // Tokens [n0, n0 + N), of which the first `done` have their outputs already.
    template <int G0, int GN, int N>
    static void panel(const sterna::LinearArgs& a, const uint8_t* panel, int64_t tile, int n0,
                      int done, int part) {
        VI acc[N][GN];
        STERNA_UNROLL(16)
        for (int n = 0; n < N; ++n) STERNA_UNROLL(8)
        for (int g = 0; g < GN; ++g) acc[n][g] = F::zero();
        panel_sums<F, G0, GN, N>(a, panel, 0, a.K, n0, part, acc);
        STERNA_UNROLL(16)
        for (int n = 0; n < N; ++n) {
            if (n < done) continue;
            STERNA_UNROLL(8)
            for (int g = 0; g < GN; ++g)
                finish<F>(a, acc[n][g], n0 + n, G0 + g,
                          (tile * F::kGroups + G0 + g) * sterna::kGroupRows + kLanes * part);
        }
    }
};

// Tokens from n0 on, in blocks of N; of those that are left an even number, overlapping the tokens before where they
// are odd: a block for every number would be as much code again. There are two tokens at least.
template <class Blocks, int G0, int GN, int N>
inline void panel_tokens(const sterna::LinearArgs& a, const uint8_t* panel, int64_t tile, int n0,
                         int part) {
    static_assert(N >= 2);
    for (; a.n - n0 >= N; n0 += N) Blocks::template panel<G0, GN, N>(a, panel, tile, n0, 0, part);
    if (n0 == a.n) return;
    if constexpr (N > 2) {
        if (a.n - n0 < N - 1 || a.n < N)
            return panel_tokens<Blocks, G0, GN, N % 2 ? N - 1 : N - 2>(a, panel, tile, n0, part);
    }
    Blocks::template panel<G0, GN, N>(a, panel, tile, a.n - N, N - (a.n - n0), part);
}

// Sweeps the groups from G0 on, a few at a time. With few registers two: a weight then serves three times as many
// tokens as groups, and L2 keeps up.
constexpr int kSweepGroups = kPanelVectors < 4 ? 2 : 4;
constexpr int kPanelSums = kPanelVectors * kPanelTokens;
template <class F, class Blocks, int G0 = 0>
inline void sweep_panel(const sterna::LinearArgs& a, const uint8_t* panel, int64_t tile) {
    constexpr int GN = F::kGroups - G0 < kSweepGroups ? F::kGroups - G0 : kSweepGroups;
    constexpr int N = kPanelSums / GN;
    for (int part = 0; part < kParts; ++part)
        panel_tokens<Blocks, G0, GN, N>(a, panel, tile, 0, part);
    if constexpr (G0 + GN < F::kGroups) sweep_panel<F, Blocks, G0 + GN>(a, panel, tile);
}

template <class F, class Blocks>
void linear_panel(const sterna::LinearArgs& a) {
    Blocks::begin(a);
    uint8_t* panel = Blocks::scratch(a);
    for (int64_t tile = a.tile_begin; tile < a.tile_end; ++tile) {
        decode_tile<F, 0, F::kGroups, true>(a.codes + tile * a.tile_bytes, a.K, 0, a.K, panel);
        Blocks::prepare(a, tile, panel);
        sweep_panel<F, Blocks>(a, panel, tile);
    }
}

}  // namespace
