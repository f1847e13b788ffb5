// The fast arithmetic of float formats: sums of bf16 products on a matrix unit (AMX).
//
// A weight is a sum of F::kPlanes bf16 numbers, and an activation one of kXPlanes<F>; each plane is about
// 2^-8 of the one before. Over steps of 32 k in ascending order, y adds the products of planes i and j with
// i + j < kXPlanes<F>, the smallest first (PlaneProducts). The omitted products are below 2^-21 of a
// product. bf16 weights have one product, and their activations are rounded to bf16. A product of tiles
// adds 32 k as the unit does, which flushes denormals. kFloatSteps<F> such steps are a block of k, and
// blocks are added in ascending order. Results and errors differ from those of linear.h, but results are
// the same for any number of tokens, threads and tiles.
#pragma once
#include "layouts/layout.h"
#include "linear/linear.h"
#include "matrix/float_planes.h"
#include "matrix/float_token.h"
#include "matrix/tiles.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

constexpr int kFloatTileTokens = 512;  // tokens whose sums wait in L2 between two blocks of k
constexpr int64_t kFloatChunkTiles = 8;

// At the first product of a block of k, the accumulators still hold the previous block, [row block][16][16]. Each
// is stored to `previous` (null: there was none) just before it is cleared.
struct SumsTurn {
    float* previous;
    bool first;
};

#define float_sums_turn(t)                                         \
    if (turn.first) {                                              \
        if (turn.previous) tile_store(t, turn.previous + 256 * t); \
        tile_zero(t);                                              \
    }

#define float_dot(acc, w)         \
    if constexpr (X == 4) {       \
        tile_dot_bf16(acc, 4, w); \
    } else {                      \
        tile_dot_bf16(acc, 5, w); \
    }

// acc[g] += the x tile in register X (4 or 5) times the weight tile w + g * row_block. Meanwhile the next x tile is
// loaded into the other register.
template <int X>
inline void float_product(const WeightTiles& t, const uint8_t* w, const uint8_t* next_x,
                          const SumsTurn& turn) {
    tile_load(6, w, t.line);
    tile_load(7, w + t.row_block, t.line);
    if (next_x) {
        if constexpr (X == 4) {
            tile_load(5, next_x, kLine);
        } else {
            tile_load(4, next_x, kLine);
        }
    }
    float_sums_turn(0);
    float_dot(0, 6);
    tile_load(6, w + 2 * t.row_block, t.line);
    float_sums_turn(1);
    float_dot(1, 7);
    tile_load(7, w + 3 * t.row_block, t.line);
    float_sums_turn(2);
    float_dot(2, 6);
    float_sums_turn(3);
    float_dot(3, 7);
}
#undef float_dot
#undef float_sums_turn

// Computes all products of one step of 32 k. `more`: load the first x tile of the next step. `between` runs after
// each product, while the unit works.
template <class F, int X, int I = 0, class Between>
inline void float_step(const WeightTiles& t, const uint8_t* w, const uint8_t* x, bool more,
                       const SumsTurn& turn, Between between) {
    constexpr PlaneProducts<F> p;
    if constexpr (I < p.count) {
        constexpr int next = I + 1 < p.count ? p.x[I + 1] : kXPlanes<F> + p.x[0];
        const bool load = I + 1 < p.count || more;
        float_product<X>(t, w + p.w[I] * t.plane, load ? x + next * kTileBytes : nullptr,
                         I == 0 ? turn : SumsTurn{nullptr, false});
        between();
        float_step<F, 9 - X, I + 1>(t, w, x, more, turn, between);
    }
}

// Multiplies 16 tokens x 4 row blocks over `steps` x 32 k of a block.
template <class F, class Between>
inline void float_block(const WeightTiles& t, const uint8_t* x, int64_t steps, SumsTurn turn,
                        Between between) {
    constexpr PlaneProducts<F> p;
    constexpr int kOdd = p.count % 2 ? 5 : 4;  // the first register of the second step
    tile_load(4, x + p.x[0] * kTileBytes, kLine);
    const uint8_t* w = t.at;
    constexpr int64_t x_step = kXPlanes<F> * kTileBytes;
    for (int64_t s = 0; s < steps; s += 2) {
        float_step<F, 4>(t, w, x, s + 1 < steps, turn, between);
        turn.first = false;
        if (s + 1 == steps) break;
        float_step<F, kOdd>(t, w + t.step, x + x_step, s + 2 < steps, turn, between);
        x += 2 * x_step;
        w += 2 * t.step;
    }
}

// A thread's scratch.
template <class F>
struct FloatTileScratch {
    // For many tokens, a panel of a block of k; for few, two panels of a step, used in turn.
    static constexpr int64_t kPanel = kFloatSteps<F> * F::kRowBlocks * F::kPlanes * kTileBytes;
    static_assert(kFloatSteps<F> >= 2);
    static constexpr int64_t kBlock = F::kRowBlocks * 256;
    static constexpr int64_t kTileSums = kBlock / 16 * kFloatTileTokens;  // sums of a weight tile
    uint8_t* panel;
    float* block;  // [row block][16 tokens][16 rows], a finished block of k
    float* sums;  // sums of earlier blocks: [tile of a chunk][token][row block][16]
    explicit FloatTileScratch(uint8_t* p)
        : panel(p), block(reinterpret_cast<float*>(p + kPanel)), sums(block + kBlock) {}
    static constexpr int64_t bytes(int n) {
        return kPanel + (kBlock + (n > 16 ? kFloatChunkTiles * kTileSums : kBlock)) * 4;
    }
};

// Finishes a block of 16 tokens x a weight tile x a block of k: adds it to the sums of earlier blocks of k, or
// writes outputs, a few tokens at a time while the unit computes the next block.
template <class F>
struct FloatEpilogue {
    const sterna::LinearArgs& a;
    const float* block;
    float* sums = nullptr;  // [token][row block][16]
    int64_t n = 0, row = 0;
    int next = 0, tokens = 0;
    bool first = true, last = true;  // whether this is the first, or last, block of k

    void run(int count) {
        constexpr int G = F::kRowBlocks;
        const int end = next + count < tokens ? next + count : tokens;
        for (; next < end; ++next) {
            STERNA_UNROLL(4)
            for (int g = 0; g < G; ++g) {
                float* kept = sums + 16 * (next * G + g);
                VF sum = f_load(block + 256 * g + 16 * next);
                if (!first) sum = f_add(f_load(kept), sum);
                if (!last) {
                    f_store(kept, sum);
                } else if (row + 16 * g < a.M) {
                    put_output<true>(a, scaled_float(a, sum, row + 16 * g), n + next, row + 16 * g);
                }
            }
        }
    }
    // Takes the block that the accumulators hold now: tokens from `token` on, `left` of them to the end.
    void start(float* to, int64_t token, int64_t left, int64_t tile, bool is_first, bool is_last) {
        sums = to, n = token, row = tile * F::kRowBlocks * sterna::kRowBlock;
        next = 0, tokens = static_cast<int>(left < 16 ? left : 16);
        first = is_first, last = is_last;
    }
    void drain(float* to) {
        tile_store(0, to);
        tile_store(1, to + 256);
        tile_store(2, to + 512);
        tile_store(3, to + 768);
        run(16);
    }
};

// Multiplies weight tiles [first, last) with tokens [n0, n1), over one block of k: steps [step0, step0 + steps).
template <class F>
inline void float_block_k(const sterna::LinearArgs& a, int64_t first, int64_t last, int64_t step0,
                          int64_t steps, int64_t n0, int64_t n1, const FloatTileScratch<F>& s) {
    const int64_t valid = a.K - step0 * kTileK, bytes = steps * float_step_bytes<F>;
    const int64_t turns = steps * PlaneProducts<F>{}.count;  // of 16 tokens
    constexpr int kX = kXPlanes<F>;
    FloatEpilogue<F> epilogue{a, s.block};
    SumsTurn turn{nullptr, true};
    for (int64_t tile = first; tile < last; ++tile) {
        const uint8_t* codes = a.codes + tile * a.tile_bytes + step0 * float_step_bytes<F>;
        const uint8_t* next = codes + (tile + 1 < a.tile_end ? a.tile_bytes : 0);
        Ahead weights_ahead = Ahead::over(next, bytes, (n1 - n0 + 15) / 16 * turns);
        const WeightTiles w = weight_tiles<F>(codes, valid, steps, s.panel);
        float* sums = s.sums + (tile - first) * s.kTileSums;
        for (int64_t n = n0; n < n1; n += 16, sums += s.kBlock) {
            // For the first weight tile, x is not in L2 yet: prefetch the next tokens.
            const uint8_t* x = x_tile(a, kX, n, step0);
            const uint8_t* next_x = x_tile(a, kX, n + 16, step0);
            const bool far = tile == first && n + 16 < n1;
            Ahead tokens_ahead;
            if (far) tokens_ahead = Ahead::over(next_x, steps * kX * kTileBytes, turns);
            float_block<F>(w, x, steps, turn, [&] {
                epilogue.run(4);
                weights_ahead.step();
                tokens_ahead.step();
            });
            epilogue.run(16);
            epilogue.start(sums, n, n1 - n, tile, step0 == 0, valid <= steps * kTileK);
            turn.previous = s.block;
        }
    }
    epilogue.drain(s.block);  // before the next block of k reads the sums
}

template <class F>
[[gnu::noinline]] void float_many_tokens(const sterna::LinearArgs& a) {
    const FloatTileScratch<F> s(a.scratch);
    const int64_t steps = (a.K + kTileK - 1) / kTileK;
    for (int64_t first = a.tile_begin; first < a.tile_end; first += kFloatChunkTiles) {
        const int64_t end = first + kFloatChunkTiles;
        const int64_t last = end < a.tile_end ? end : a.tile_end;
        for (int64_t n0 = 0; n0 < a.n; n0 += kFloatTileTokens) {
            const int64_t n1 = n0 + kFloatTileTokens < a.n ? n0 + kFloatTileTokens : a.n;
            for (int64_t s0 = 0; s0 < steps; s0 += kFloatSteps<F>) {
                const int64_t left = steps - s0;
                float_block_k<F>(a, first, last, s0, left < kFloatSteps<F> ? left : kFloatSteps<F>,
                                 n0, n1, s);
            }
        }
    }
}

// Prefetches four pages at a time, a window of them ahead of the arithmetic. Tiles are read one by one here, and a
// hardware prefetcher follows a stream only within a page (linear.h).
class PagesAhead {
  public:
    static constexpr int64_t kTurn = 512, kPage = 4096, kWindow = 4 * kPage;
    explicit PagesAhead(const uint8_t* begin) : window_(begin) {}
    void run(int64_t turns) {
        for (; turns > 0; --turns) {
            const uint8_t* p = window_ + (turn_ & 3) * kPage + (turn_ >> 2) * kTurn;
            STERNA_UNROLL(8)
            for (int line = 0; line < kTurn; line += kLine) prefetch(p + line);
            turn_ = (turn_ + 1) & (kWindow / kTurn - 1);
            if (turn_ == 0) window_ += kWindow;
        }
    }

  private:
    const uint8_t* window_;
    uint32_t turn_ = 0;
};

// Decodes weights step by step (32 k), a part at a time, while the unit multiplies the previous step.
template <class F>
class StepDecoder {
  public:
    // Bytes of one of the two panels.
    static constexpr int64_t kPanel = F::kRowBlocks * F::kPlanes * kTileBytes;
    static constexpr int64_t kPartK = 8;
    // How many parts to decode after each product. A step has to be decoded well before its tiles are loaded, since
    // loading a tile right after its store waits for the store.
    static constexpr int kPartsBeside =
        (kTileK / kPartK + PlaneProducts<F>{}.count - 1) / PlaneProducts<F>{}.count;
    StepDecoder(const sterna::LinearArgs& a, uint8_t* panels)
        : a_(a), panels_(panels), tile_(a.tile_begin), codes_(codes()), ahead_(codes_) {
        ahead_.run(PagesAhead::kWindow / PagesAhead::kTurn);
    }
    void part() {
        if (k_ == kTileK || tile_ == a_.tile_end) return;
        ahead_.run(float_step_bytes<F> / PagesAhead::kTurn * kPartK / kTileK);
        if (!tiles_in_place<F>(valid(), 1)) {
            uint8_t* panel = panels_ + odd_ * kPanel;
            decode_planes<F>(codes_, k_, k_ + kPartK, valid(), tiles_of_panel<F>(panel, 1), panel);
        }
        k_ += kPartK;
    }
    // Decodes the remaining parts of the step, and returns its tiles. The next part belongs to the next step.
    WeightTiles finish() {
        while (k_ < kTileK) part();
        const WeightTiles tiles = tiles_in_place<F>(valid(), 1)
                                      ? tiles_of_codes<F>(codes_)
                                      : tiles_of_panel<F>(panels_ + odd_ * kPanel, 1);
        k_ = 0;
        odd_ = 1 - odd_;
        if (++step_ * kTileK >= a_.K) {
            step_ = 0;
            ++tile_;
        }
        codes_ = codes();
        return tiles;
    }

  private:
    const uint8_t* codes() const {
        return a_.codes + tile_ * a_.tile_bytes + step_ * float_step_bytes<F>;
    }
    int64_t valid() const { return a_.K - step_ * kTileK; }

    const sterna::LinearArgs& a_;
    uint8_t* panels_;
    int64_t tile_, step_ = 0, k_ = 0, odd_ = 0;
    const uint8_t* codes_;
    PagesAhead ahead_;
};

// Runs a layer of at most 16 tokens, which reads its weights once.
template <class F>
[[gnu::noinline]] void float_few_tokens(const sterna::LinearArgs& a) {
    const FloatTileScratch<F> s(a.scratch);
    const int64_t steps = (a.K + kTileK - 1) / kTileK;
    FloatEpilogue<F> epilogue{a, s.block};
    StepDecoder<F> decoder(a, s.panel);
    float* previous = nullptr;
    for (int64_t tile = a.tile_begin; tile < a.tile_end; ++tile) {
        for (int64_t step = 0; step < steps; ++step) {
            const int64_t of_block = step % kFloatSteps<F>;
            float_block<F>(decoder.finish(), x_tile(a, kXPlanes<F>, 0, step), 1,
                           {previous, of_block == 0}, [&] {
                               epilogue.run(4);
                               for (int i = 0; i < decoder.kPartsBeside; ++i) decoder.part();
                           });
            epilogue.run(16);
            if (of_block + 1 < kFloatSteps<F> && step + 1 < steps) continue;
            epilogue.start(s.sums, 0, a.n, tile, step < kFloatSteps<F>, step + 1 == steps);
            previous = s.block;
        }
    }
    epilogue.drain(s.block);
}

// Sets y to 0, or to the residual.
template <class F>
void float_no_terms(const sterna::LinearArgs& a) {
    for (int64_t tile = a.tile_begin; tile < a.tile_end; ++tile)
        for (int n = 0; n < a.n; ++n)
            for (int g = 0; g < F::kRowBlocks; ++g)
                finish<F>(a, F::zero(), n, g, (tile * F::kRowBlocks + g) * sterna::kRowBlock);
}

template <class F>
inline void float_tokens(const sterna::LinearArgs& a) {
    if constexpr (F::kBf16Steps) {
        if (a.n == 1 && a.K % 2 == 0) return float_one_token<F>(a);
    }
    tile_begin(a.n < 16 ? a.n : 16);
    if (a.n <= 16) {
        float_few_tokens<F>(a);
    } else {
        float_many_tokens<F>(a);
    }
    tile_end();
}

template <class F>
void linear_float_tiles(const sterna::LinearArgs& a) {
    static_assert(kParts == 1);
    if (a.K == 0) return float_no_terms<F>(a);
    const unsigned state =
        flush_denormals();  // of sums of blocks, so that one token on vectors gets the unit's bits
    float_tokens<F>(a);
    restore_denormals(state);
}

template <class F>
int64_t float_tiles_scratch(int64_t, int n) {
    return FloatTileScratch<F>::bytes(n);
}

template <class F>
constexpr sterna::FastKernels fast_kernels() {
    return {linear_float_tiles<F>, float_tiles_scratch<F>, true, kXPlanes<F>,
            PlaneProducts<F>{}.count};
}

}  // namespace
