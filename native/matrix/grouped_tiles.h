// Many tokens on a matrix unit, with scales in groups of 32 k. Levels and activations are whole numbers of at most
// eight bits, which are exact in bf16, and the sum of 32 products is below 2^24, which is exact in a float. So a
// product of bf16 tiles, 16 tokens x 32 k and 32 k x 16 rows, gives the sums of one group, already as floats.
// A product of bytes would take as long, since 32 k fill only half of it, and would leave the conversions to the
// vector units. The vector units bind: they do a multiplication and an addition for each vector of sums, 32 for a
// product of 16 cycles. While the matrix unit multiplies, they have one port for these instead of two.
#pragma once
#include "layouts/layout.h"
#include "linear/panel.h"
#include "matrix/float_planes.h"
#include "matrix/tiles.h"
#include "scales/groups.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// The k of a block: a tile of weights in bf16. Half of it (16 KB) stays in L1 while it meets all tokens.
constexpr int64_t kGroupedBlockK = 256;
constexpr int kGroupedBlockTokens = 512;
// The row blocks of a chunk: their outputs (32 KB each) stay in L2, together with a block of k of all tokens.
constexpr int kGroupedChunkRowBlocks = 32;

// Writes two k of 16 rows as a line of a bf16 tile, and remainders beyond 8 bits to the kPlanes - 1 tiles behind it.
template <int kPlanes>
[[gnu::always_inline]] inline void store_planes(uint8_t* to, VF low, VF high) {
    const VI upper = i_set1(static_cast<int32_t>(0xFFFF0000u));
    STERNA_UNROLL(2)
    for (int p = 0; p < kPlanes; ++p) {
        i_store(to + p * kTileBytes, b_select(upper, i_bits(high), i_shr<16>(i_bits(low))));
        low = f_sub(low, f_bits(i_and(i_bits(low), upper)));
        high = f_sub(high, f_bits(i_and(i_bits(high), upper)));
    }
}

// The activations of up to kGroupedBlockTokens tokens; kSpan is the k of a minimum. With kPairs, k and k + 16 of a group
// follow each other.
template <int kSpan, bool kPairs>
struct GroupedTokens {
    int64_t groups;  // groups of 32 k
    uint8_t* tiles;  // [token / 16][k / 32], 16 tokens x 32 k in bf16
    float* scale;  // [token / 16][k / 32][16]
    float* minimum;  // [token / 16][k / kSpan][16]: the factors of minima

    GroupedTokens(uint8_t* p, int64_t K, int n)
        : groups(K / kGroupK),
          tiles(p),
          scale(reinterpret_cast<float*>(p + blocks(n) * groups * kTileBytes)),
          minimum(scale + blocks(n) * groups * 16) {}
    static constexpr int64_t blocks(int n) {
        return ((n < kGroupedBlockTokens ? n : kGroupedBlockTokens) + 15) / 16;
    }
    static constexpr int64_t bytes(int64_t K, int n) {
        return blocks(n) * (K / kGroupK * (kTileBytes + 64) + K / kSpan * 64);
    }

    // Converts tokens [n0, n1), and pads the last block of 16.
    void gather(const sterna::LinearArgs& a, int64_t n0, int64_t n1) const {
        uint8_t* tile = tiles;
        float *s = scale, *m = minimum;
        for (int64_t n = n0; n < n1; n += 16)
            for (int64_t k = 0; k < a.K; k += kGroupK, tile += kTileBytes, s += 16) {
                const int8_t* x = a.xq + sterna::x_offset(n, k, a.ldx, 16);
                for (int i = 0; i < 16; ++i) {
                    const auto* row = reinterpret_cast<const uint8_t*>(x + 64 * i);
                    const VF first = f_from_i(i_load_i8(row)),
                             second = f_from_i(i_load_i8(row + 16));
                    if constexpr (kPairs) {
                        store_planes<1>(tile + 64 * i, first, second);
                    } else {
                        i_store(tile + 64 * i, round_bf16(first, second));
                    }
                    s[i] = group_scale(a, n + i, k);
                }
                if (!a.groups.minima) continue;
                for (int64_t j = k; j < k + kGroupK; j += kSpan, m += 16)
                    for (int i = 0; i < 16; ++i) m[i] = span_factor<kSpan>(a, n + i, j);
            }
    }
};

// Turns codes of 16 rows x 4 k into levels, or into twice the levels if these are halves (GroupOffset).
template <class F>
class Levels {
  public:
    static_assert(F::kDecodedOffsetX2 == 0);
    explicit Levels(int zero_x2) {
        const int twice = zero_x2 % 2 ? 2 : 1;
        STERNA_UNROLL(8)
        for (int g = 0; g < F::kRowBlocks; ++g) {
            const VF in_place = f_from_i(F::settle(i_set1(kOne), g));  // a field may stay in place
            factor_[g] = f_mul(in_place, f_set1(static_cast<float>(twice) / kOne));
            offset_[g] = f_fma(factor_[g], f_set1(-kMagic),
                               f_set1(static_cast<float>(-zero_x2 * twice / 2)));
        }
    }
    // Makes a float of byte j of each double word. In bits 8 to 15 of a float in [2^15, 2^16), a byte counts ones.
    template <int j>
    VF at(VI codes, int row_block) const {
        const VI byte = j == 0 ? i_shl<8>(codes) : j == 1 ? codes : i_shr<j == 3 ? 16 : 8>(codes);
        const VF level = f_fma(f_bits(b_select(i_set1(0xFF00), byte, i_bits(f_set1(kMagic)))),
                               factor_[row_block], offset_[row_block]);
        if constexpr (!F::kHasLevel128) return level;
        // Levels are powers of two, with 127 in place of 128. The carry into the exponent turns 127 into 128.
        return f_bits(i_and(i_add(i_bits(level), i_set1(1 << 17)),
                            i_set1(static_cast<int32_t>(0xFF800000u))));
    }

  private:
    static constexpr int kOne = 1 << 14;
    static constexpr float kMagic = 1 << 15;
    VF factor_[F::kRowBlocks], offset_[F::kRowBlocks];
};

// Decodes a tile of weights over kc k to panel[row block][k / 32][plane], and multiplies levels by scale(k, g).
template <class F, int kPlanes, class Scale>
inline void decode_levels(const sterna::LinearArgs& a, const uint8_t* step, int64_t kc,
                          uint8_t* panel, Scale scale) {
    const int64_t stride = kc / kGroupK * kPlanes * kTileBytes;
    const Levels<F> levels(a.zero_x2);
    const typename F::Levels table(a.levels);
    for (int64_t k = 0; k < kc; k += F::kStepK, step += F::kStepBytes) {
        if constexpr (!F::kInCache) {
            STERNA_UNROLL(8)
            for (int line = 0; line < F::kStepBytes; line += kLine)
                prefetch(step + kPanelPrefetchBytes + line);
        }
        STERNA_UNROLL(8)
        for (int j = 0; j < F::kStepK; j += 4) {
            VI w[F::kRowBlocks];
            decode_step<F>(table, step, 0, j, w);
            uint8_t* to =
                panel + (k + j) / kGroupK * kPlanes * kTileBytes + (k + j) % kGroupK / 2 * kLine;
            STERNA_UNROLL(8)
            for (int g = 0; g < F::kRowBlocks; ++g, to += stride) {
                const VF s = scale(k + j, g);
                store_planes<kPlanes>(to, f_mul(levels.template at<0>(w[g], g), s),
                                      f_mul(levels.template at<1>(w[g], g), s));
                store_planes<kPlanes>(to + kLine, f_mul(levels.template at<2>(w[g], g), s),
                                      f_mul(levels.template at<3>(w[g], g), s));
            }
        }
    }
}

// The factors of the sums of 16 tokens x 16 rows in a block of k, and their outputs.
struct GroupedRun {
    const float *w, *w_minimum;  // [group of k][rows of a tile]
    const float *x, *x_minimum;  // [group of k][16]
    float* y;  // [16 tokens][16 rows]
    float* part;  // [16 tokens][16 rows]: the sums of a super-block's runs so far
    int row;  // first row, in the tile
    int begin, end;  // the run's groups of k
    bool last;  // whether this is the last run of the block
};

// Adds the sums of 16 tokens x 16 rows over the groups of a block of k to the outputs.
template <class F>
struct PlainTile {
    using Format = F;
    static constexpr int kSpan = kGroupK;  // k of a minimum
    static constexpr int kPlanes = 1;
    static constexpr bool kPairs = false;
    static constexpr int kRows = F::kRowBlocks * sterna::kRowBlock;
    const sterna::LinearArgs& a;
    TileScales<kTileRowsOf<F>> scales;
    int64_t k0;

    PlainTile(const sterna::LinearArgs& args, int64_t tile, int64_t k)
        : a(args), scales(args, tile, F::kRowBlocks), k0(k) {}

    void prepare(const uint8_t* codes, int64_t kc, uint8_t* panel, float* scale,
                 float* minimum) const {
        decode_levels<F, 1>(a, codes + bytes_before<F>(k0), kc, panel,
                            [](int64_t, int) { return f_set1(1.0f); });
        for (int64_t k = k0; k < k0 + kc; k += kGroupK) {
            const uint8_t* line = scales.at(k);
            for (int row = 0; row < kRows; row += 16) {
                f_store(scale + row, scales.scale(line, row));
                if (a.groups.minima) f_store(minimum + row, scales.minimum(line, row));
            }
            scale += kRows;
            minimum += kRows;
        }
    }
    [[gnu::always_inline]] void begin(const GroupedRun& run, VF (&y)[16]) const {
        STERNA_UNROLL(16)
        for (int n = 0; n < 16; ++n) y[n] = k0 || run.begin ? f_load(run.y + 16 * n) : f_set1(0.0f);
    }
    // Adds group j of the block to the outputs.
    [[gnu::always_inline]] void add(const GroupedRun& run, const float* sums, int j,
                                    VF (&y)[16]) const {
        const VF s = f_load(run.w + j * kRows);
        const float* x = run.x + j * 16;
        STERNA_UNROLL(16)
        for (int n = 0; n < 16; ++n)
            y[n] = f_fma(f_load(sums + 16 * n), f_mul(s, f_set1(x[n])), y[n]);
        if (!F::kMinima || !a.groups.minima) return;
        const VF m = f_load(run.w_minimum + j * kRows);
        x = run.x_minimum + j * 16;
        STERNA_UNROLL(16)
        for (int n = 0; n < 16; ++n) y[n] = f_fma(m, f_set1(x[n]), y[n]);
    }
    [[gnu::always_inline]] void end(const GroupedRun& run, VF (&y)[16]) const {
        STERNA_UNROLL(16)
        for (int n = 0; n < 16; ++n) f_store(run.y + 16 * n, y[n]);
    }
};

// A thread's scratch.
template <class Tile>
struct GroupedScratch {
    using F = typename Tile::Format;
    static constexpr int kChunk = kGroupedChunkRowBlocks / F::kRowBlocks;  // tiles
    static constexpr int64_t kPanel =
        F::kRowBlocks * kGroupedBlockK / kGroupK * Tile::kPlanes * kTileBytes;
    static constexpr int64_t kFactors = kGroupedBlockK / sterna::kSumK * Tile::kRows;
    static constexpr int64_t kTileOutputs = int64_t{kGroupedBlockTokens} * Tile::kRows;
    uint8_t* panel;
    float *scale, *minimum;  // of a tile's rows
    float* sums;  // [2][16 tokens][16 rows]
    float* part;  // for one tile, laid out as y
    float* y;  // [tile of a chunk][token / 16][row block][16 tokens][16 rows]
    GroupedTokens<Tile::kSpan, Tile::kPairs> x;
    GroupedScratch(uint8_t* p, int64_t K, int n)
        : panel(p),
          scale(reinterpret_cast<float*>(p + kPanel)),
          minimum(scale + kFactors),
          sums(minimum + kFactors),
          part(sums + 512),
          y(part + kTileOutputs),
          x(reinterpret_cast<uint8_t*>(y + kChunk * kTileOutputs), K, n) {}
    static constexpr int64_t bytes(int64_t K, int n) {
        return kPanel + (2 * kFactors + 512 + (1 + kChunk) * kTileOutputs) * 4 +
               GroupedTokens<Tile::kSpan, Tile::kPairs>::bytes(K, n);
    }
};

template <class Tile>
constexpr int64_t grouped_tiles_scratch(int64_t K, int n) {
    return GroupedScratch<Tile>::bytes(K, n);
}

// Accumulator J % 2 += the x tile in register 4 + J times the first or the second plane of weights.
template <int J, int kPlane>
inline void group_product(const uint8_t* w) {
    static_assert(J < 4 && (kPlane == 0 || J < 2));
    if constexpr (kPlane == 1 && J == 0) {
        tile_load(6, w, kLine);
        tile_dot_bf16(0, 4, 6);
    } else if constexpr (kPlane == 1) {
        tile_load(7, w, kLine);
        tile_dot_bf16(1, 5, 7);
    } else if constexpr (J % 2 == 0) {
        tile_load(2, w, kLine);
        if constexpr (J == 0) tile_dot_bf16(0, 4, 2);
        if constexpr (J == 2) tile_dot_bf16(0, 6, 2);
    } else {
        tile_load(3, w, kLine);
        if constexpr (J == 1) tile_dot_bf16(1, 5, 3);
        if constexpr (J == 3) tile_dot_bf16(1, 7, 3);
    }
}

// Multiplies 16 tokens with a tile of weights over a few groups of k. The groups' x tiles stay in the unit for all row
// blocks, since loading a tile costs as much as a product. There are as many as leave a register for each weight tile
// of two groups. The unit computes one group ahead of the sums that are stored, and these are one group ahead of the
// sums that are added, since a tile just stored is slow to read.
template <class Tile>
class GroupedSweep {
  public:
    static constexpr int kPlanes = Tile::kPlanes, kHeld = kPlanes == 1 ? 4 : 2;  // x tiles
    static constexpr int64_t kWeights = kPlanes * kTileBytes;  // bytes of a group's weights
    GroupedSweep(const Tile& tile, float* sums) : tile_(tile), even_(sums), odd_(sums + 256) {}

    // Multiplies groups of k, starting at x.
    static void hold(const uint8_t* x, int count) {
        tile_load(4, x, kLine);
        tile_load(5, x + kTileBytes, kLine);
        if (kHeld == 2 || count == 2) return;
        tile_load(6, x + 2 * kTileBytes, kLine);
        tile_load(7, x + 3 * kTileBytes, kLine);
    }
    [[gnu::always_inline]] void run(const GroupedRun& run, const uint8_t* w) {
        pair<0>(w);
        if (run_.y) tile_.end(run_, sum_);
        run_ = run;
        tile_.begin(run_, sum_);
        group_ = run.begin;
        if constexpr (kHeld == 4) {
            if (run.end - run.begin == 2) return;
            pair<2>(w + 2 * kWeights);
            group_ += 2;
        }
    }
    [[gnu::always_inline]] void drain() {
        tile_store(1, odd_);
        tile_.add(run_, even_, group_, sum_);
        tile_.add(run_, odd_, group_ + 1, sum_);
        tile_.end(run_, sum_);
    }

  private:
    template <int J>
    [[gnu::always_inline]] void pair(const uint8_t* w) {
        tile_zero(0);
        group_product<J, 0>(w);
        if constexpr (kPlanes == 2) group_product<J, 1>(w + kTileBytes);
        tile_store(1, odd_);
        if (J || run_.y) tile_.add(run_, even_, group_, sum_);
        w += kWeights;
        tile_zero(1);
        group_product<J + 1, 0>(w);
        if constexpr (kPlanes == 2) group_product<J + 1, 1>(w + kTileBytes);
        tile_store(0, even_);
        if (J || run_.y) tile_.add(run_, odd_, group_ + 1, sum_);
    }

    const Tile& tile_;
    float *even_, *odd_;  // sums of the two previous groups
    GroupedRun run_{};  // the run that these belong to
    int group_ = 0;  // the first of these groups
    VF sum_[16];
};

// Multiplies a tile of weights with tokens [n0, n1), over the block of k of `tile`.
template <class Tile>
inline void grouped_sweep(const Tile& tile, int64_t kc, int64_t n0, int64_t n1, float* y,
                          const GroupedScratch<Tile>& s) {
    using Sweep = GroupedSweep<Tile>;
    constexpr int64_t kMinima = kGroupK / Tile::kSpan;  // minima of a group
    constexpr int kRowBlocks = Tile::Format::kRowBlocks;
    constexpr int kAskedFor =
        Sweep::kHeld * 16 / kRowBlocks;  // lines to prefetch during the sweep of a row block
    const int groups = static_cast<int>(kc / kGroupK);
    Sweep sweep(tile, s.sums);
    for (int begin = 0; begin < groups; begin += Sweep::kHeld) {
        const int end = begin + Sweep::kHeld < groups ? begin + Sweep::kHeld : groups;
        int64_t at = tile.k0 / kGroupK;  // index among the tokens' groups
        int64_t out = 0;
        for (int64_t n = n0; n < n1; n += 16, at += s.x.groups) {
            const uint8_t* x = s.x.tiles + (at + begin) * kTileBytes;
            const uint8_t* next = x + s.x.groups * kTileBytes;  // prefetched from L2
            sweep.hold(x, end - begin);
            for (int g = 0; g < kRowBlocks; ++g, out += 256) {
                for (int i = 0; i < kAskedFor; ++i, next += kLine) prefetch(next);
                const int row = g * sterna::kRowBlock;
                const GroupedRun run{s.scale + row,
                                     s.minimum + row,
                                     s.x.scale + at * 16,
                                     s.x.minimum + at * kMinima * 16,
                                     y + out,
                                     s.part + out,
                                     row,
                                     begin,
                                     end,
                                     end == groups};
                sweep.run(run, s.panel + (g * groups + begin) * Sweep::kWeights);
            }
        }
    }
    sweep.drain();
}

// Computes weight tiles [first, last) for tokens [n0, n1).
template <class Tile, class... Decode>
inline void grouped_chunk(const sterna::LinearArgs& a, int64_t first, int64_t last, int64_t n0,
                          int64_t n1, const GroupedScratch<Tile>& s, Decode... decode) {
    using F = typename Tile::Format;
    for (int64_t k0 = 0; k0 < a.K; k0 += kGroupedBlockK) {
        const int64_t kc = a.K - k0 < kGroupedBlockK ? a.K - k0 : kGroupedBlockK;
        for (int64_t t = first; t < last; ++t) {
            const Tile tile(a, t, k0, decode...);
            tile.prepare(a.codes + t * a.tile_bytes, kc, s.panel, s.scale, s.minimum);
            grouped_sweep(tile, kc, n0, n1, s.y + (t - first) * s.kTileOutputs, s);
        }
    }
    for (int64_t t = first; t < last; ++t) {
        const float* y = s.y + (t - first) * s.kTileOutputs;
        for (int64_t n = n0; n < n1; n += 16)
            for (int g = 0; g < F::kRowBlocks; ++g, y += 256) {
                const int64_t row = (t * F::kRowBlocks + g) * sterna::kRowBlock;
                if (row >= a.M) continue;
                const int count = static_cast<int>(n1 - n < 16 ? n1 - n : 16);
                for (int i = 0; i < count; ++i)
                    put_output<true>(a, scaled_groups(a, f_load(y + 16 * i), row, Tile::kRows),
                                     n + i, row);
            }
    }
}

// decode: of a Tile that formats share, what is the format's own.
template <class Tile, class... Decode>
void grouped_tiles(const sterna::LinearArgs& a, Decode... decode) {
    const GroupedScratch<Tile> s(a.scratch, a.K, a.n);
    tile_begin(16);
    for (int64_t n0 = 0; n0 < a.n; n0 += kGroupedBlockTokens) {
        const int64_t n1 = a.n - n0 < kGroupedBlockTokens ? a.n : n0 + kGroupedBlockTokens;
        if (!a.scratch_ready || a.n > kGroupedBlockTokens) s.x.gather(a, n0, n1);
        for (int64_t first = a.tile_begin; first < a.tile_end; first += s.kChunk) {
            const int64_t end = first + s.kChunk;
            grouped_chunk(a, first, end < a.tile_end ? end : a.tile_end, n0, n1, s, decode...);
        }
    }
    tile_end();
}

}  // namespace
