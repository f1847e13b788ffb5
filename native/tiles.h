// Many tokens on a matrix unit (AMX): x tiles of 16 tokens x 64 k, weight tiles of 64 k x 16 rows in
// the very lines that a panel is made of, accumulators of 16 tokens x 16 rows.
#pragma once
#include "panel.h"

namespace {

template <class F>
void linear_tiles(const sterna::LinearArgs& a);
template <class F>
int64_t tiles_scratch(int64_t K, int n);

// Fewer tokens leave the unit's rows empty, and the dot product instructions keep up with memory.
constexpr int kFewestTileTokens = 4;

constexpr int tiles_x_block(int n) { return n > 16 ? 16 : 1; }

#ifdef tile_dot

constexpr int64_t kTileBytes = 1024;
// A panel of at most this many k is decoded at a time: 64 rows of it (160 KB) and its share of 512
// tokens (1.3 MB) stay in 2 MB of L2 together. Sums of one block wait in memory for the next.
constexpr int64_t kBlockK = 2560;
constexpr int kBlockTokens = 512;
// Tiles that take their turn while one block of k of the activations is in L2.
constexpr int64_t kChunkTiles = 4;

// A finished block of at most 32 tokens x 2 groups, turned into outputs a few lines at a time while
// the matrix unit works on the next one.
template <class F>
struct Pending {
    const sterna::LinearArgs& a;
    const int32_t* sums = nullptr;  // [token / 16][group] of [16][16]
    int64_t n = 0, tile = 0;
    int group = 0, groups = 1, next = 0, lines = 0;

    // A line is one token x 16 rows.
    void run(int count) {
        const int end = next + count < lines ? next + count : lines;
        for (; next < end; ++next) {
            const int token = next / groups, g = next % groups;
            const int32_t* sum = sums + (token / 16 * groups + g) * 256 + token % 16 * 16;
            const int64_t row = (tile * F::kGroups + group + g) * sterna::kGroupRows;
            if (row >= a.M) continue;
            VF y = scaled<F>(a, i_load(sum), n + token, group + g, row);
            const int64_t at = (n + token) * a.ldy + row;
            if (a.residual) {
                f_store(a.y + at, f_add(f_load(a.residual + at), y));
            } else {
                f_stream(a.y + at, y);  // read again only after the whole layer: leave L2 to panels
            }
        }
    }
};

// acc[t][g] += x tiles t (x_stride bytes apart) times weight tiles g (w_stride apart), over kc.
template <class F, int T, int G>
inline void tile_loop(const int8_t* x, int64_t x_stride, const uint8_t* w, int64_t w_stride,
                      int64_t kc, Pending<F>& pending) {
    const int lines_per_step = static_cast<int>((pending.lines * 64 + kc - 1) / kc);
    for (int64_t at = 0; at < kc * 16; at += kTileBytes) {
        tile_load(6, w + at, 64);
        tile_load(4, x + at, 64);
        tile_dot(0, 4, 6);
        if constexpr (G > 1) {
            tile_load(7, w + w_stride + at, 64);
            tile_dot(1, 4, 7);
        }
        if constexpr (T > 1) {
            tile_load(5, x + x_stride + at, 64);
            tile_dot(2, 5, 6);
            if constexpr (G > 1) tile_dot(3, 5, 7);
        }
        pending.run(lines_per_step);
    }
    pending.run(pending.lines);
}

template <int T, int G>
inline void tiles_start(const int32_t* sums, bool first) {
    if (first) {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
        return;
    }
    tile_load(0, sums, 64);
    if constexpr (G > 1) tile_load(1, sums + 256, 64);
    if constexpr (T > 1) {
        tile_load(2, sums + 256 * G, 64);
        if constexpr (G > 1) tile_load(3, sums + 256 * (G + 1), 64);
    }
}
template <int T, int G>
inline void tiles_keep(int32_t* sums) {
    tile_store(0, sums);
    if constexpr (G > 1) tile_store(1, sums + 256);
    if constexpr (T > 1) {
        tile_store(2, sums + 256 * G);
        if constexpr (G > 1) tile_store(3, sums + 256 * (G + 1));
    }
}

// One tile's panel against a block of tokens.
template <class F>
struct Sweep {
    const sterna::LinearArgs& a;
    Pending<F> pending{a};
    int32_t* staging[2];  // the block being computed, and the one being turned into outputs
    int64_t n0, n1;  // tokens
    int64_t k0, kc;
    const uint8_t* panel;

    template <int G0>
    void groups(int64_t tile, int32_t* sums) {
        constexpr int G = F::kGroups - G0 < 2 ? 1 : 2;
        for (int64_t n = n0; n < n1; n += 32, sums += 4 * 256)
            n1 - n > 16 ? block<G0, 2, G>(tile, n, sums) : block<G0, 1, G>(tile, n, sums);
        if constexpr (G0 + G < F::kGroups) groups<G0 + G>(tile, sums);
    }

    template <int G0, int T, int G>
    void block(int64_t tile, int64_t n, int32_t* sums) {
        const bool last = k0 + kc >= a.K;
        tiles_start<T, G>(sums, k0 == 0);
        tile_loop<F, T, G>(a.xq + sterna::x_offset(n, k0, a.ldx, 16), 16 * a.ldx,
                           panel + G0 * kc * 16, kc * 16, kc, pending);
        if (!last) {
            tiles_keep<T, G>(sums);
            pending.lines = pending.next = 0;
            return;
        }
        tiles_keep<T, G>(staging[0]);
        const int tokens = static_cast<int>(n1 - n < 16 * T ? n1 - n : 16 * T);
        pending.sums = staging[0];
        pending.n = n, pending.tile = tile;
        pending.group = G0, pending.groups = G;
        pending.next = 0, pending.lines = tokens * G;
        int32_t* const free = staging[1];
        staging[1] = staging[0];
        staging[0] = free;
    }
};

constexpr int64_t block_k(int64_t K) {
    const int64_t blocks = (K + kBlockK - 1) / kBlockK;
    return blocks ? (K / 64 + blocks - 1) / blocks * 64 : 64;
}
constexpr int64_t block_tokens(int n) {
    return n < kBlockTokens ? (n + 31) / 32 * 32 : kBlockTokens;
}
// Bytes of sums that one tile keeps between two blocks of k.
template <class F>
constexpr int64_t sums_bytes(int n) {
    return (F::kGroups + 1) / 2 * block_tokens(n) / 32 * 4 * kTileBytes;
}

// Few tokens, so that their sums stay in the unit over all of K: decode 64 k, multiply, go on.
template <class F, int G0 = 0>
inline void few_tokens(const sterna::LinearArgs& a, int64_t tile) {
    constexpr int G = F::kGroups - G0 < 4 ? F::kGroups - G0 : 4;
    const uint8_t* step = a.codes + tile * a.tile_bytes;
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    for (int64_t k = 0; k < a.K; k += 64, step += 64 / F::kStepK * F::kStepBytes) {
        // Four buffers in turn: decoding runs ahead of the unit.
        uint8_t* w = a.scratch + k / 64 % 4 * 4 * kTileBytes;
        decode_panel<F, G0, G>(step, 64, w);
        tile_load(4, a.xq + k, a.ldx);
        tile_load(6, w, 64);
        tile_dot(0, 4, 6);
        if constexpr (G > 1) {
            tile_load(7, w + kTileBytes, 64);
            tile_dot(1, 4, 7);
        }
        if constexpr (G > 2) {
            tile_load(6, w + 2 * kTileBytes, 64);
            tile_dot(2, 4, 6);
        }
        if constexpr (G > 3) {
            tile_load(7, w + 3 * kTileBytes, 64);
            tile_dot(3, 4, 7);
        }
    }
    auto* sums = reinterpret_cast<int32_t*>(a.scratch + 16 * kTileBytes);
    tile_store(0, sums);
    tile_store(1, sums + 256);
    tile_store(2, sums + 512);
    tile_store(3, sums + 768);
    for (int n = 0; n < a.n; ++n)
        for (int g = 0; g < G; ++g)
            finish<F>(a, i_load(sums + 256 * g + 16 * n), n, G0 + g,
                      (tile * F::kGroups + G0 + g) * sterna::kGroupRows);
    if constexpr (G0 + G < F::kGroups) few_tokens<F, G0 + G>(a, tile);
}

template <class F>
void many_tokens(const sterna::LinearArgs& a) {
    const int64_t kc = block_k(a.K);
    uint8_t* panel = a.scratch;
    auto* staging = reinterpret_cast<int32_t*>(panel + panel_scratch<F>(kc));
    auto* sums = staging + 2 * 4 * 256;
    const int64_t tile_sums = sums_bytes<F>(a.n) / 4;
    Sweep<F> s{a, Pending<F>{a}, {staging, staging + 4 * 256}, 0, 0, 0, kc, panel};
    for (int64_t first = a.tile_begin; first < a.tile_end; first += kChunkTiles) {
        const int64_t last = first + kChunkTiles < a.tile_end ? first + kChunkTiles : a.tile_end;
        for (s.n0 = 0; s.n0 < a.n; s.n0 += kBlockTokens) {
            s.n1 = s.n0 + kBlockTokens < a.n ? s.n0 + kBlockTokens : a.n;
            for (s.k0 = 0; s.k0 < a.K; s.k0 += kc) {
                s.kc = a.K - s.k0 < kc ? a.K - s.k0 : kc;
                for (int64_t tile = first; tile < last; ++tile) {
                    decode_panel<F, 0, F::kGroups>(
                        a.codes + tile * a.tile_bytes + s.k0 / F::kStepK * F::kStepBytes, s.kc,
                        panel);
                    s.template groups<0>(tile, sums + (tile - first) * tile_sums);
                }
            }
        }
    }
    s.pending.run(s.pending.lines);
}

template <class F>
void linear_tiles(const sterna::LinearArgs& a) {
    tile_begin(a.x_block == 1 ? a.n : 16);
    if (a.x_block == 1) {
        for (int64_t tile = a.tile_begin; tile < a.tile_end; ++tile) few_tokens<F>(a, tile);
    } else {
        many_tokens<F>(a);
    }
    tile_end();
}

template <class F>
int64_t tiles_scratch(int64_t K, int n) {
    if (tiles_x_block(n) == 1) return 20 * kTileBytes;
    const int64_t kept = block_k(K) < K ? kChunkTiles * sums_bytes<F>(n) : sums_bytes<F>(n);
    return panel_scratch<F>(block_k(K)) + 8 * kTileBytes + kept;
}

int64_t tiles_peak(int64_t ops) {
    const int64_t per_round = int64_t{4} * 2 * 16 * 16 * 64, rounds = ops / per_round + 1;
    tile_begin(16);
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    tile_zero(4);
    tile_zero(5);
    tile_zero(6);
    tile_zero(7);
    for (int64_t round = 0; round < rounds; ++round) {
        tile_dot(0, 4, 6);
        tile_dot(1, 4, 7);
        tile_dot(2, 5, 6);
        tile_dot(3, 5, 7);
    }
    tile_end();
    return rounds * per_round;
}

#endif

}  // namespace
