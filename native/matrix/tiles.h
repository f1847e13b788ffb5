// Many tokens on a matrix unit (AMX), with x tiles of 16 tokens x 64 k and accumulators of 16 tokens x 16
// rows. Weight tiles of 64 k x 16 rows have the same lines as a panel.
#pragma once
#include "layouts/layout.h"
#include "linear/panel.h"
#include "scales/groups.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// Fewer tokens leave the unit's rows empty, and the dot product instructions keep up with memory.
constexpr int kFewestTileTokens = 5;

constexpr int tiles_x_block(int n) { return n > sterna::kFewTokens ? 16 : 1; }

// Four row blocks x 512 k, decoded, are 32 KB. They stay in L1 (48 KB) while they meet all tokens, one tile of tokens
// for four of weights. Shorter blocks would add their sums more often: with 384 k a layer took 1.00 to 1.14 times as
// long (2B's layers on one thread of a Xeon). Tokens, and the sums of earlier blocks of k, come from L2 at 32 bytes a
// cycle. With a whole decoded panel in L2 it would be 64, but L2 gives 44. Token tiles are read past L1
// (tile_load_once), which gained 4 % on one thread.
constexpr int64_t kBlockK = 512;
constexpr int kPanelRowBlocks = 4;
constexpr int kBlockTokens = 512;
// The weight tiles of a chunk: their sums (128 KB each) stay in L2, together with a block of k of all tokens.
constexpr int64_t kChunkTiles = 4;

// Panels of a block: if levels reach 128, a second panel has the rest of them (IntegerDot::kHasLevel128).
template <class F>
constexpr int kPanels = F::kHasLevel128 ? 2 : 1;

// Blocks of k have about equal lengths, of whole tiles of x.
template <class F>
constexpr int64_t block_k(int64_t K) {
    constexpr int64_t kUnit = 64, kMost = kBlockK / kPanels<F> / kUnit * kUnit;
    static_assert(kMost > 0);
    const int64_t blocks = (K + kMost - 1) / kMost, units = (K + kUnit - 1) / kUnit;
    return blocks ? (units + blocks - 1) / blocks * kUnit : kUnit;
}

// Adds a block's sums to those of earlier blocks of k as integers, for rows with one scale.
template <class F>
struct JoinRows {
    using Sum = int32_t;
    static int64_t step(const sterna::LinearArgs& a) { return block_k<F>(a.K); }
    JoinRows(const sterna::LinearArgs&, int64_t, int64_t, int) {}

    void add(const sterna::LinearArgs& a, VI sum, Sum* kept, bool first, bool last, int64_t token,
             int, int64_t row) const {
        if (!first) sum = i_add(sum, i_load(kept));
        if (!last) {
            i_store(kept, sum);
        } else if (row < a.M) {
            put_output<true>(a, scaled<Panel<F>>(a, sum, token, 0, row), token, row);
        }
    }
};

// Adds a block's sums as floats, for long groups: a block of k is one group.
template <class F>
struct JoinGroups {
    using Sum = float;
    static constexpr int kX = sterna::kLongGroupK;
    static int64_t step(const sterna::LinearArgs&) { return kX; }

    GroupOffset<GroupPanel<F>> offset;
    VF scale[kPanelRowBlocks], minimum[kPanelRowBlocks];
    int64_t k;
    // The scales of row blocks [g0, g0 + kPanelRowBlocks) of a tile, at k.
    JoinGroups(const sterna::LinearArgs& a, int64_t tile, int64_t k, int g0)
        : offset(a.zero_x2), k(k) {
        const TileScales<kTileRowsOf<F>> scales(a, tile, F::kRowBlocks);
        for (int g = 0; g < kPanelRowBlocks && g0 + g < F::kRowBlocks; ++g) {
            const int row = (g0 + g) * sterna::kRowBlock;
            scale[g] = scales.scale(scales.at(k), row);
            if (a.groups.minima) minimum[g] = scales.minimum(scales.at(k), row);
        }
    }
    void add(const sterna::LinearArgs& a, VI sum, Sum* kept, bool first, bool last, int64_t token,
             int g, int64_t row) const {
        const VI t = offset.level_sum(sum, i_set1(offset.z * span_sum<kX>(a, token, k)));
        VF y = first ? f_set1(0.0f) : f_load(kept);
        y = f_fma(f_from_i(t), f_mul(scale[g], f_set1(group_scale<kX>(a, token, k))), y);
        if (a.groups.minima) y = f_fma(minimum[g], f_set1(span_factor<kX, kX>(a, token, k)), y);
        if (!last) {
            f_store(kept, y);
        } else if (row < a.M) {
            put_output<true>(a, y, token, row);
        }
    }
};

// Finishes a block of 16 tokens x up to 64 rows x a block of k: adds it (`Join`) to the sums of earlier blocks of k,
// or writes outputs, a few tokens at a time while the unit computes the next block.
template <class F, class Join>
struct Epilogue {
    const sterna::LinearArgs& a;
    const int32_t* block;  // [row block][16 tokens][16 rows]
    Join join;
    typename Join::Sum* sums = nullptr;  // sums of earlier blocks of k: [token][row block][16]
    int64_t n = 0, row = 0;
    int next = 0, tokens = 0;
    bool first = true, last = true;  // whether this is the first, or last, block of k

    template <int G>
    void run(int count) {
        const int end = next + count < tokens ? next + count : tokens;
        for (; next < end; ++next) {
            STERNA_UNROLL(4)
            for (int g = 0; g < G; ++g)
                join.add(a, i_load(block + 256 * g + 16 * next), sums + 16 * (next * G + g), first,
                         last, n + next, g, row + 16 * g);
        }
    }
};

// Prefetches what is needed next, so many lines a step. It goes into L2, since the panel fills L1.
struct Ahead {
    const uint8_t *line = nullptr, *end = nullptr;
    int64_t lines = 0;
    static Ahead over(const void* from, int64_t bytes, int64_t steps) {
        const auto* line = static_cast<const uint8_t*>(from);
        return {line, line + bytes, (bytes / kLine + steps - 1) / steps};
    }
    void step() {
        for (int64_t i = 0; i < lines && line < end; ++i, line += kLine) prefetch_l2(line);
    }
};

#define tile_dot_x(acc, w)   \
    if constexpr (X == 4) {  \
        tile_dot(acc, 4, w); \
    } else {                 \
        tile_dot(acc, 5, w); \
    }

// acc[g] += the x tile in register X (4 or 5) times weight tile g. Meanwhile the next x tile is loaded into the other
// register, because a load waits for the products that still read its register. On a block's first step, the
// accumulators still hold the previous block, and each is stored just before it is cleared.
template <int X, int G>
inline void tile_step(const uint8_t* w, int64_t stride, const int8_t* next, int32_t* previous) {
    tile_load(6, w, 64);
    if constexpr (G > 1) tile_load(7, w + stride, 64);
    if (next) {
        if constexpr (X == 4) {
            tile_load_once(5, next, 64);
        } else {
            tile_load_once(4, next, 64);
        }
    }
    if (previous) {
        tile_store(0, previous);
        tile_zero(0);
    }
    tile_dot_x(0, 6);
    if constexpr (G > 2) tile_load(6, w + 2 * stride, 64);
    if constexpr (G > 1) {
        if (previous) {
            tile_store(1, previous + 256);
            tile_zero(1);
        }
        tile_dot_x(1, 7);
    }
    if constexpr (G > 3) tile_load(7, w + 3 * stride, 64);
    if constexpr (G > 2) {
        if (previous) {
            tile_store(2, previous + 512);
            tile_zero(2);
        }
        tile_dot_x(2, 6);
    }
    if constexpr (G > 3) {
        if (previous) {
            tile_store(3, previous + 768);
            tile_zero(3);
        }
        tile_dot_x(3, 7);
    }
}
#undef tile_dot_x

// acc[g] = one tile of tokens times weight tile g, over one block of k, for each of `panels` panels, which lie one
// behind the other (kTwo: there may be two).
template <int G, bool kTwo, class Epilogue>
inline void tile_block_k(const int8_t* x, const uint8_t* panel, int64_t kc, int panels,
                         int32_t* block, Epilogue& epilogue, Ahead& weights_ahead,
                         Ahead& tokens_ahead) {
    const int tokens = static_cast<int>((16 * 64 + kc - 1) / kc);
    const int64_t stride = kc * 16, end = kTwo ? panels * stride : stride;
    const auto weights = [&](int64_t at) {
        return panel + (kTwo && at >= stride ? (G - 1) * stride + at : at);
    };
    const auto tokens_at = [&](int64_t at) {
        if (at >= end) return static_cast<const int8_t*>(nullptr);
        return x + (kTwo && at >= stride ? at - stride : at);
    };
    tile_load_once(4, x, 64);
    for (int64_t at = 0; at < end; at += 2 * kTileBytes) {
        const int64_t second = at + kTileBytes;
        tile_step<4, G>(weights(at), stride, tokens_at(second), at == 0 ? block : nullptr);
        epilogue.template run<G>(tokens);
        weights_ahead.step();
        tokens_ahead.step();
        if (second >= end) break;
        tile_step<5, G>(weights(second), stride, tokens_at(second + kTileBytes), nullptr);
        epilogue.template run<G>(tokens);
        weights_ahead.step();
        tokens_ahead.step();
    }
    epilogue.template run<G>(16);
}

// Writes the rest of levels of 128 behind a panel of `bytes`, and returns whether there are any.
inline bool level_128_panel(uint8_t* panel, int64_t bytes) {
    VI any = i_set1(0);
    for (int64_t i = 0; i < bytes; i += kLine) {
        const VI top = b_top(i_load(panel + i));
        i_store(panel + bytes + i, top);
        any = i_or(any, top);
    }
    int32_t lanes[kLanes], all = 0;
    i_store(lanes, any);
    for (const int32_t lane : lanes) all |= lane;
    return all != 0;
}

// Stores the accumulators that tile_block_k has left, and finishes them.
template <int G, class Epilogue>
inline void drain(int32_t* block, Epilogue& epilogue) {
    tile_store(0, block);
    tile_store(1, block + 256);
    tile_store(2, block + 512);
    tile_store(3, block + 768);
    epilogue.template run<G>(16);
    epilogue.tokens = 0;
}

// A thread's scratch in many_tokens.
template <class F>
struct TileScratch {
    static constexpr int64_t kPanelBytes = kPanelRowBlocks * kBlockK * 16;
    uint8_t* panel;
    int32_t *block, *sums;
    explicit TileScratch(uint8_t* p)
        : panel(p),
          block(reinterpret_cast<int32_t*>(p + kPanelBytes)),
          sums(block + kPanelRowBlocks * 256) {}
    static constexpr int64_t sums_of_tile() { return int64_t{F::kRowBlocks} * 16 * kBlockTokens; }
    static constexpr int64_t bytes() {
        return kPanelBytes + kPanelRowBlocks * kTileBytes + kChunkTiles * sums_of_tile() * 4;
    }
};

// Multiplies row blocks [G0, G0 + G) of weight tiles [first, last) with tokens [n0, n1), over one block of k.
template <class F, class Join, int G0, int G>
inline void row_blocks_k(const sterna::LinearArgs& a, int64_t first, int64_t last, int64_t k0,
                         int64_t kc, int64_t n0, int64_t n1, const TileScratch<F>& s) {
    const int64_t before = bytes_before<F>(k0), steps = (n1 - n0 + 15) / 16 * (kc / 64);
    const int64_t bytes = bytes_before<F>(k0 + kc) - before;
    // The next block of k of the same tokens; after the last, the first one.
    const int64_t next_k = k0 + kc < a.K ? k0 + kc : 0;
    const int64_t next_kc = a.K - next_k < kc ? a.K - next_k : kc;
    Epilogue<F, Join> epilogue{a, s.block, Join(a, first, k0, G0)};
    for (int64_t tile = first; tile < last; ++tile) {
        const uint8_t* codes = a.codes + tile * a.tile_bytes;
        const uint8_t* next = codes + before + (tile + 1 < a.tile_end ? a.tile_bytes : 0);
        Ahead weights_ahead = Ahead::over(next, bytes, steps), tokens_ahead;
        decode_tile<F, G0, G>(a.levels, codes, k0, kc, s.panel);
        int panels = 1;
        if constexpr (F::kHasLevel128) panels += level_128_panel(s.panel, G * kc * 16);
        auto* sums = reinterpret_cast<typename Join::Sum*>(s.sums) +
                     (tile - first) * s.sums_of_tile() + G0 * 16 * (n1 - n0);
        for (int64_t n = n0; n < n1; n += 16, sums += G * 256) {
            // Long rows: activations do not stay in L2 from one chunk of tiles to the next.
            if (tile + 1 == last)
                tokens_ahead = Ahead::over(a.xq + sterna::x_offset(n, next_k, a.ldx, 16),
                                           next_kc * 16, kc / 64);
            tile_block_k<G, F::kHasLevel128>(a.xq + sterna::x_offset(n, k0, a.ldx, 16), s.panel, kc,
                                             panels, s.block, epilogue, weights_ahead,
                                             tokens_ahead);
            if (n == n0) epilogue.join = Join(a, tile, k0, G0);  // the previous tile is finished
            epilogue.sums = sums;
            epilogue.n = n;
            epilogue.row = (tile * F::kRowBlocks + G0) * sterna::kRowBlock;
            epilogue.next = 0;
            epilogue.tokens = static_cast<int>(n1 - n < 16 ? n1 - n : 16);
            epilogue.first = k0 == 0;
            epilogue.last = k0 + kc >= a.K;
        }
    }
    drain<G>(s.block, epilogue);  // before the next block of k reads the sums
    if constexpr (G0 + G < F::kRowBlocks) {
        constexpr int rest = F::kRowBlocks - G0 - G;
        row_blocks_k < F, Join, G0 + G,
            rest<kPanelRowBlocks ? rest : kPanelRowBlocks>(a, first, last, k0, kc, n0, n1, s);
    }
}

// Runs a layer of more than kFewTokens tokens.
template <class F, class Join>
void many_tokens(const sterna::LinearArgs& a) {
    tile_begin(16);
    constexpr int G = F::kRowBlocks < kPanelRowBlocks ? F::kRowBlocks : kPanelRowBlocks;
    const TileScratch<F> s(a.scratch);
    const int64_t step = Join::step(a);
    for (int64_t first = a.tile_begin; first < a.tile_end; first += kChunkTiles) {
        const int64_t last = first + kChunkTiles < a.tile_end ? first + kChunkTiles : a.tile_end;
        for (int64_t n0 = 0; n0 < a.n; n0 += kBlockTokens) {
            const int64_t n1 = n0 + kBlockTokens < a.n ? n0 + kBlockTokens : a.n;
            for (int64_t k0 = 0; k0 < a.K; k0 += step)
                row_blocks_k<F, Join, 0, G>(a, first, last, k0, a.K - k0 < step ? a.K - k0 : step,
                                            n0, n1, s);
        }
    }
    tile_end();
}

// Runs a layer of few tokens. Its sums stay in the unit over all of K; 64 k are decoded and multiplied at a time.
template <class F, int G0 = 0>
inline void few_tokens(const sterna::LinearArgs& a, int64_t tile) {
    constexpr int G = F::kRowBlocks - G0 < 4 ? F::kRowBlocks - G0 : 4;
    const uint8_t* step = a.codes + tile * a.tile_bytes;
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    // Four buffers are used in turn. Tiles are loaded a step after they were decoded, because a load waits for stores
    // that have not reached L1.
    const auto buffer = [&](int64_t k) { return a.scratch + k / 64 % 4 * 4 * kTileBytes; };
    decode_panel<F, G0, G, true>(a.levels, step, 64, buffer(0));
    for (int64_t k = 0; k < a.K; k += 64) {
        step += 64 / F::kStepK * F::kStepBytes;
        if (k + 64 < a.K) decode_panel<F, G0, G, true>(a.levels, step, 64, buffer(k + 64));
        const uint8_t* w = buffer(k);
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
            finish<Panel<F>>(a, i_load(sums + 256 * g + 16 * n), n, G0 + g,
                             (tile * F::kRowBlocks + G0 + g) * sterna::kRowBlock);
    if constexpr (G0 + G < F::kRowBlocks) few_tokens<F, G0 + G>(a, tile);
}

template <class F>
void linear_few_tokens(const sterna::LinearArgs& a) {
    tile_begin(a.n);
    for (int64_t tile = a.tile_begin; tile < a.tile_end; ++tile) few_tokens<F>(a, tile);
    tile_end();
}

template <class F>
constexpr int64_t tiles_scratch(int n) {
    return tiles_x_block(n) == 1 ? 20 * kTileBytes : TileScratch<F>::bytes();
}

}  // namespace
