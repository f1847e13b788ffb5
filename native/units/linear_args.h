// Arguments of the kernels of linear layers. Plain data, as all of kernel_table.h, which includes it.
#pragma once
#include <cstdint>

#include "scales/layouts.h"

namespace sterna {

// A format packs rows in tiles of a few row blocks; a step is a few consecutive k of those rows.
constexpr int kRowBlock = 16;  // rows
// The fewest tokens of a joint layer (joint_panel.h); and the most rows for which it makes lines of activations once,
// and the fewest that a thread takes from others.
constexpr int kFewestJointTokens = 8, kJointRows = 1536, kLeastJointRows = 768;
// Tiles that kernels may read side by side where tokens are at most kFewTokens.
constexpr int kMostStreams = 4, kFewTokens = 16;
// The most that may go to vectors though there is a matrix unit (LinearArgs::tile_tokens): rows of their own for each thread.
constexpr int kMostVectorTokens = 255;
// Widths of activation rows are padded to this, so that kernels may load and store whole vectors.
constexpr int kPad = 64;
// An integer accumulator holds sums of code * x, |x| <= 127, times the unit of a field that stays in place. The
// tightest bounds are pot4's, whose codes reach 256 and whose levels 128, in t = 2 * acc - zero_x2 * sum(x):
// both below 2^31 for K <= 66,052. In place, b4 holds 240 * 127 * K, b2 192 * 127 * K, b1 128 * 127 * K.
constexpr int64_t kMaxIntegerK = 65536;
static_assert(256 * 127 * kMaxIntegerK < (int64_t{1} << 31));
static_assert(2 * 128 * 127 * kMaxIntegerK < (int64_t{1} << 31));

// The loops of few tokens, by what a core does with a line of weights: it decodes and multiplies fields of less than
// four bits, of which a line has many, or does little more than load wider ones. Wider fields leave a core so far
// ahead of its sums that loads which miss L1, for which there are few places, are what it waits for.
enum class ReadLoop : uint8_t { kFewBits, kManyBits };
constexpr int kReadLoops = 2;
// How a thread asks memory for weights while tokens are few. Which way is fastest differs between CPUs, between numbers
// of threads and between loops (reading.h); none changes a bit.
struct Reading {
    uint8_t streams = 1;  // tiles read side by side: 1..kMostStreams
    bool into_l2 = false;  // lines are asked for into L2, for one token of kManyBits; else into L1
    uint16_t turn_bytes = 4096;  // read of one before the next has its turn
    uint32_t prefetch_bytes = 4096;  // how far ahead of the arithmetic lines are asked for
};
struct Readings {
    Reading loops[kReadLoops];
    bool next_page = true;  // whether attention asks for pages while it computes with earlier ones

    const Reading& of(ReadLoop loop) const { return loops[static_cast<int>(loop)]; }
};

// Where a linear layer's outputs go, and what is added to them: linear/output.h takes all of it by name.
struct LinearOutputs {
    float* y = nullptr;  // [n][ld]
    int64_t ld = 0;
    const float* residual = nullptr;  // [n][ld] or null; may be y itself
    const float* bias = nullptr;  // [M], readable in whole row blocks, or null
};

// The levels of codes, of a weight whose layout looks them up (layouts/level_bytes.h): those of others are zeros.
constexpr int kMostLevels = 16;
struct LevelTable {
    alignas(16) int8_t of[kMostLevels] = {};
};

// y[n][m] = sum_k W[m][k] x[n][k] (+ residual[n][m]) (+ bias[m]), for tiles [tile_begin, tile_end).
struct LinearArgs {
    const uint8_t* codes;  // [tiles][tile_bytes]
    const float*
        scale;  // [tiles * tile_rows], unit premultiplied; 0 in padded rows; null for groups, may be for floats
    // Takes the place of `scale`; x_scale is then [n][ldx / x_group_k], and x_sum [n][ldx / kSumK].
    GroupScales groups;
    int64_t tile_bytes;
    int64_t M;  // rows; outputs are written in whole row blocks, so outputs.ld covers M rounded up
    int64_t K;  // padded to the format's step
    int zero_x2;  // t = 2 * sum(code * x) - zero_x2 * sum(x)
    LevelTable levels;
    const int8_t*
        xq;  // integer formats: in [-127, 127], zero beyond K, laid out as x_offset() says
    const float* x_scale;  // [n]
    const int32_t* x_sum;  // [n] sum of xq
    const float* xf;  // float formats: [n][ldx]
    const uint16_t* xh;  // FastKernels: x as Bf16PlanesArgs lays it out, n rounded up to 16 rows
    int64_t ldx;  // in elements
    int x_block;  // 1, or the kernel table's x_block(n); then xq holds n rounded up to 16 rows
    int n;
    LinearOutputs outputs;
    uint8_t* scratch;  // FormatKernels::scratch_bytes(K, n) bytes, aligned to 64; one thread's own
    int64_t tile_begin, tile_end;
    Reading reading;
    // The scratch still holds what this thread's last call for the same x and weight left there.
    bool scratch_ready;
    // The most tokens that go straight from the decoder, at most kFewTokens; 0: as many as the unit says itself.
    int direct_tokens;
    // The fewest tokens for which ternary weights, of a scale for each row, are multiplied by dot products and lookups
    // (joint_panel.h), where the unit has that; 0: none.
    int joint_tokens;
    // The fewest of more than kFewTokens that a matrix unit multiplies, at most kMostVectorTokens + 1; fewer go to the unit
    // that it extends.
    int tile_tokens;
};

// The offset of token n at k: blocks of x_block tokens by 64 k, so that a block of 16 is one 1,024-byte
// tile of the matrix unit. x_block 1 is plain rows.
[[gnu::always_inline]] constexpr int64_t x_offset(int64_t n, int64_t k, int64_t ldx, int x_block) {
    return n / x_block * x_block * ldx + k / 64 * 64 * x_block + n % x_block * 64 + k % 64;
}

// A row of a matrix to be packed. Several may lie in one: BitNet's checkpoints have four codes in a byte.
struct SourceRow {
    const uint8_t* at;
    int shift;  // bits below its codes
};

// Packs tiles [tile_begin, tile_end) of a matrix whose rows are words of a float format as the format
// stores them, or bytes: code = (byte + offset) >> shift of the row & mask, modulo 256 before the shift.
struct PackArgs {
    const SourceRow* rows;  // [M]
    int64_t M, K;  // logical
    uint8_t offset, mask;  // integer formats
    uint8_t* codes;
    int64_t tile_bytes;
    int64_t tile_begin, tile_end;
};

// out[k] = raw code or float value of W[row][k]; FormatKernels::values gives the weight itself.
struct RowArgs {
    const uint8_t* codes;
    int64_t tile_bytes;
    int64_t row, K;
    float* out;
    LevelTable levels = {};
};

constexpr int kRescoreJobs = 4;  // row blocks that one rescoring call computes

// y[j][r] = sum_k W[16 * row_blocks[j] + r][k] x[k], with the arithmetic of the format's `linear`.
struct RescoreArgs {
    const uint8_t* codes;
    int64_t tile_bytes;
    int64_t K;  // padded to the format's step
    const float* x;
    const int32_t* row_blocks;  // [jobs]
    int jobs;  // 1..kRescoreJobs
    float* y;  // [jobs][16]
};

// Rounds row blocks of a float matrix W to rows s q in the layout "b8", with what a bound on the
// error of s q x needs (docs/explanation/exact-head.md). Every value is the same in every unit.
struct ShadowArgs {
    const uint8_t* codes;  // the codes of W
    int64_t tile_bytes, K;  // K padded to the format's step
    uint8_t* out;  // b8 tiles; bytes beyond K are left as they are
    int64_t out_tile_bytes;
    float* scale;  // s, [row blocks * 16] like the rest; 0 where the row counts as 0
    float* error;  // >= ||W_i - s q_i||_2
    float* norm;  // >= ||s q_i||_2
    float* peak;  // >= max_k |W_ik - s q_ik|
    int64_t row_block_begin, row_block_end;
};

// Copies of a matrix of two-bit codes from which single rows, or single columns, are read for one token (active.h).
constexpr int kActiveLine = 256;  // codes of a line: k of a row, or rows of a column
// Active values are listed in whole blocks of this many.
constexpr int kActiveBlock = 64;
// Whether so many values are active that reading tiles is faster: on Zen 4 the two ways met at 0.6 to 0.7.
[[gnu::always_inline]] constexpr bool mostly_active(int64_t active, int64_t all) {
    return 2 * active > all;
}
[[gnu::always_inline]] constexpr int64_t active_stride(int64_t codes) {
    return (codes + kActiveLine - 1) / kActiveLine * 64;
}
struct ActiveCopyArgs {
    const uint8_t* codes;  // the format's tiles, as in LinearArgs
    int64_t tile_bytes, tiles, M, K;
    uint8_t* out;  // zeros; row i, or column k, starts at i * stride
    int64_t stride;  // active_stride
    int64_t first_tile;  // tile whose first row is row 0 of the copy (rows)
    int64_t begin, end;  // tiles of rows; columns, multiples of 64
};
struct ActiveRows {
    const uint8_t* copy;
    int64_t stride;
    const float* gate;  // [rows]: what relu closes needs no row
    const float* scale;  // [rows], as in LinearArgs
    float* y;  // [rows]
};
struct ActiveColumns {
    const uint8_t* copy;
    int64_t stride;
    const int32_t* places;  // [count]: columns, in whole blocks
    const int8_t* values;  // their activations
    int64_t count;
};

}  // namespace sterna
