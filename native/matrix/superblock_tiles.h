// Super-blocks on a matrix unit: the sums of superblocks.h from the products of grouped_tiles.h. With groups of 16 k,
// tiles hold the products s_g level, as two bf16 planes if these have more than 8 bits. One product of tiles, or two,
// then gives the whole T.
#pragma once
#include "matrix/grouped_tiles.h"
#include "scales/groups.h"
#include "scales/superblocks.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// Adds the sums of 16 tokens x 16 rows over a super-block to the outputs. All formats of these groups share it: theirs is
// Decode, which makes a panel of kc k from k0 on of a tile's codes, and of scales [group][row].
template <int kSpan_, int kPlanes_, int kRowBlocks_, OddScales kOdd>
struct SuperTile {
    struct Format {
        static constexpr int kRowBlocks = kRowBlocks_;
    };
    using Decode = void (*)(const sterna::LinearArgs& a, const uint8_t* codes, int64_t k0,
                            int64_t kc, const float* scale, uint8_t* panel);
    static constexpr int kSpan = kSpan_, kPlanes = kPlanes_;
    static constexpr bool kProducts = kSpan < kGroupK;
    static constexpr bool kPairs = false;
    static constexpr int kRows = kRowBlocks_ * sterna::kRowBlock;
    static_assert(kGroupedBlockK == kSuperK);
    const sterna::LinearArgs& a;
    SuperScales<kSpan, 0, kOdd> scales;
    int64_t k0;
    Decode decode;

    SuperTile(const sterna::LinearArgs& args, int64_t tile, int64_t k, Decode of_format)
        : a(args), scales(args, tile, kRowBlocks_), k0(k), decode(of_format) {}

    void prepare(const uint8_t* codes, int64_t kc, uint8_t* panel, float* scale,
                 float* minimum) const {
        for (int64_t k = 0; k < kc; k += kSpan)
            for (int row = 0; row < kRows; row += 16) {
                f_store(scale + k / kSpan * kRows + row, scales.scale(k0 + k, row));
                if (a.groups.minima)
                    f_store(minimum + k / kSpan * kRows + row, scales.minimum(k0 + k, row));
            }
        decode(a, codes, k0, kc, scale, panel);
    }
    [[gnu::always_inline]] void begin(const GroupedRun& run, VF (&p)[16]) const {
        STERNA_UNROLL(16)
        for (int n = 0; n < 16; ++n) p[n] = run.begin ? f_load(run.part + 16 * n) : f_set1(0.0f);
    }
    [[gnu::always_inline]] void add(const GroupedRun& run, const float* sums, int j,
                                    VF (&p)[16]) const {
        const VF s = f_load(run.w + j * kRows);
        const float* x = run.x + j * 16;
        STERNA_UNROLL(16)
        for (int n = 0; n < 16; ++n) {
            VF t = f_load(sums + 16 * n);
            if constexpr (!kProducts) t = f_mul(t, s);
            p[n] = f_fma(t, f_set1(x[n]), p[n]);
        }
    }
    [[gnu::always_inline]] void end(const GroupedRun& run, VF (&p)[16]) const {
        if (!run.last) {
            STERNA_UNROLL(16)
            for (int n = 0; n < 16; ++n) f_store(run.part + 16 * n, p[n]);
            return;
        }
        const VF d = scales.d(k0, run.row);
        STERNA_UNROLL(16)
        for (int n = 0; n < 16; ++n) {
            float* y = run.y + 16 * n;
            f_store(y, f_fma(p[n], d, k0 ? f_load(y) : f_set1(0.0f)));
        }
        if (a.groups.minima) add_minima(run);
    }

  private:
    [[gnu::noinline]] void add_minima(const GroupedRun& run) const {
        const float *w = run.w_minimum, *x = run.x_minimum;
        VF u[16];
        STERNA_UNROLL(16)
        for (int n = 0; n < 16; ++n) u[n] = f_set1(0.0f);
        for (int j = 0; j < kSuperK / kSpan; ++j, w += kRows, x += 16) {
            const VF m = f_load(w);
            STERNA_UNROLL(16)
            for (int n = 0; n < 16; ++n) u[n] = f_fma(m, f_set1(x[n]), u[n]);
        }
        const VF d_minimum = scales.d_minimum(k0, run.row);
        STERNA_UNROLL(16)
        for (int n = 0; n < 16; ++n) {
            float* y = run.y + 16 * n;
            f_store(y, f_fma(u[n], d_minimum, f_load(y)));
        }
    }
};

template <class F>
using SuperTileOf =
    SuperTile<F::kSuperGroup, (F::kSuperGroup < kGroupK && F::kSuperBits > 3) ? 2 : 1,
              F::kRowBlocks, kOddScalesOf<F>>;

// SuperTile::Decode of a format.
template <class F>
void decode_super(const sterna::LinearArgs& a, const uint8_t* codes, int64_t k0, int64_t kc,
                  const float* scale, uint8_t* panel) {
    using Tile = SuperTileOf<F>;
    codes += bytes_before<F>(k0);
    const auto factor = [&](int64_t k, int g) {
        return Tile::kProducts ? f_load(scale + k / Tile::kSpan * Tile::kRows + g * 16)
                               : f_set1(1.0f);
    };
    if constexpr (F::kByBlocks) {
        alignas(64) uint8_t block[kSuperK * Tile::kRows];
        F::decode_steps(codes, kc, Direct<F>::place(block));
        decode_levels<Direct<F>, Tile::kPlanes>(a, block, kc, panel, factor);
    } else {
        decode_levels<F, Tile::kPlanes>(a, codes, kc, panel, factor);
    }
}

}  // namespace
