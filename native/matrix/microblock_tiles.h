// Micro-blocks on a matrix unit: the sums of microblocks.h from the products of grouped_tiles.h. Tiles hold s_g level, which
// has 6 bits and so is exact in bf16. The unit adds products of even k and of odd k apart, and then both sums. So the k of
// a group's first block take the even places and those of its second the odd ones: the two sums are exact, and what
// adds them rounds once, as fma(t1, s1, t0 s0) does.
#pragma once
#include "matrix/grouped_tiles.h"
#include "scales/microblocks.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// Adds the sums of 16 tokens x 16 rows over a block of k to the outputs.
template <class F>
struct MicroTile {
    using Format = F;
    static constexpr int kSpan = kGroupK;  // there are no minima
    static constexpr int kPlanes = 1;
    static constexpr bool kPairs = true;
    static constexpr int kRows = F::kRowBlocks * sterna::kRowBlock;
    MicroScales<kTileRowsOf<F>> scales;
    const sterna::LinearArgs& a;
    int64_t k0;

    MicroTile(const sterna::LinearArgs& args, int64_t tile, int64_t k)
        : scales(args, tile, F::kRowBlocks), a(args), k0(k) {}

    void prepare(const uint8_t* codes, int64_t kc, uint8_t* panel, float*, float*) const {
        static_assert(F::kStepK == 4);
        codes += bytes_before<F>(k0);
        const int64_t stride = kc / kGroupK * kTileBytes;
        const Levels<F> levels(a.zero_x2);
        const typename F::Levels table(a.levels);
        for (int64_t k = 0; k < kc; k += kGroupK, panel += kTileBytes)
            for (int j = 0; j < kMicroK; j += 4) {
                VI w[2][F::kRowBlocks];
                STERNA_UNROLL(2)
                for (int i = 0; i < 2; ++i) {
                    const uint8_t* step = codes + (k + i * kMicroK + j) / 4 * F::kStepBytes;
                    STERNA_UNROLL(8)
                    for (int line = 0; line < F::kStepBytes; line += kLine)
                        prefetch(step + kPanelPrefetchBytes + line);
                    decode_step<F>(table, step, 0, 0, w[i]);
                }
                uint8_t* to = panel + j * kLine;
                STERNA_UNROLL(8)
                for (int g = 0; g < F::kRowBlocks; ++g, to += stride) {
                    const VF first = scales.scale(k0 + k, g * sterna::kRowBlock);
                    const VF second = scales.scale(k0 + k + kMicroK, g * sterna::kRowBlock);
                    const auto put = [&]<int b>() {
                        store_planes<1>(to + b * kLine,
                                        f_mul(levels.template at<b>(w[0][g], g), first),
                                        f_mul(levels.template at<b>(w[1][g], g), second));
                    };
                    put.template operator()<0>();
                    put.template operator()<1>();
                    put.template operator()<2>();
                    put.template operator()<3>();
                }
            }
    }
    [[gnu::always_inline]] void begin(const GroupedRun& run, VF (&y)[16]) const {
        STERNA_UNROLL(16)
        for (int n = 0; n < 16; ++n) y[n] = k0 || run.begin ? f_load(run.y + 16 * n) : f_set1(0.0f);
    }
    [[gnu::always_inline]] void add(const GroupedRun& run, const float* sums, int j,
                                    VF (&y)[16]) const {
        const float* x = run.x + j * 16;
        STERNA_UNROLL(16)
        for (int n = 0; n < 16; ++n) y[n] = f_fma(f_load(sums + 16 * n), f_set1(x[n]), y[n]);
    }
    [[gnu::always_inline]] void end(const GroupedRun& run, VF (&y)[16]) const {
        STERNA_UNROLL(16)
        for (int n = 0; n < 16; ++n) f_store(run.y + 16 * n, y[n]);
    }
};

}  // namespace
