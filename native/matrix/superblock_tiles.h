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

// Adds the sums of 16 tokens x 16 rows over a super-block to the outputs.
template <class F>
struct SuperTile {
    using Format = F;
    static constexpr int kSpan = F::kSuperGroup;
    static constexpr bool kProducts = kSpan < kGroupK;
    static constexpr bool kPairs = false;
    static constexpr int kPlanes = kProducts && F::kSuperBits > 3 ? 2 : 1;
    static constexpr int kRows = F::kRowBlocks * sterna::kRowBlock;
    static_assert(kGroupedBlockK == kSuperK);
    const sterna::LinearArgs& a;
    SuperScales<kSpan, 0, kOddScalesOf<F>> scales;
    int64_t k0;

    SuperTile(const sterna::LinearArgs& args, int64_t tile, int64_t k)
        : a(args), scales(args, tile, F::kRowBlocks), k0(k) {}

    void prepare(const uint8_t* codes, int64_t kc, uint8_t* panel, float* scale,
                 float* minimum) const {
        for (int64_t k = 0; k < kc; k += kSpan)
            for (int row = 0; row < kRows; row += 16) {
                f_store(scale + k / kSpan * kRows + row, scales.scale(k0 + k, row));
                if (a.groups.minima)
                    f_store(minimum + k / kSpan * kRows + row, scales.minimum(k0 + k, row));
            }
        const auto factor = [&](int64_t k, int g) {
            return kProducts ? f_load(scale + k / kSpan * kRows + g * 16) : f_set1(1.0f);
        };
        if constexpr (F::kByBlocks) {
            alignas(64) uint8_t block[kSuperK * kRows];
            F::decode_steps(codes, kc, Direct<F>::place(block));
            decode_levels<Direct<F>, kPlanes>(a, block, kc, panel, factor);
        } else {
            decode_levels<F, kPlanes>(a, codes, kc, panel, factor);
        }
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

}  // namespace
