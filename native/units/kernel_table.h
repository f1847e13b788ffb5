// The kernels of a unit: one table per instruction set, filled in kernels.cpp, and layouts.cpp.
//
// This header is shared by units built with different compiler flags, so it declares plain data
// only: no templates, no STL, and functions always inlined, as a copy would be a weak symbol (see
// docs/explanation/architecture.md).
#pragma once
#include <cstddef>
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
// Widths of activation rows are padded to this, so that kernels may load and store whole vectors.
constexpr int kPad = 64;
// An integer accumulator holds sums of code * x, |x| <= 127, times the unit of a field that stays in place. The
// tightest bounds are pot4's, whose codes reach 256 and whose levels 128, in t = 2 * acc - zero_x2 * sum(x):
// both below 2^31 for K <= 66,052. In place, b4 holds 240 * 127 * K, b2 192 * 127 * K, b1 128 * 127 * K.
constexpr int64_t kMaxIntegerK = 65536;
static_assert(256 * 127 * kMaxIntegerK < (int64_t{1} << 31));
static_assert(2 * 128 * 127 * kMaxIntegerK < (int64_t{1} << 31));

constexpr int kPagePositions = 64;  // positions of one KV page
constexpr int kChunkPositions = 256;  // attention is summed over absolute chunks of this many

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

// y[n][m] = sum_k W[m][k] x[n][k] (+ residual[n][m]) (+ bias[m]), for tiles [tile_begin, tile_end).
struct LinearArgs {
    const uint8_t* codes;  // [tiles][tile_bytes]
    const float*
        scale;  // [tiles * tile_rows], unit premultiplied; 0 in padded rows; null for groups, may be for floats
    // Takes the place of `scale`; x_scale is then [n][ldx / x_group_k], and x_sum [n][ldx / kSumK].
    GroupScales groups;
    int64_t tile_bytes;
    int64_t M;  // rows; outputs are written in whole row blocks, so ldy covers M rounded up
    int64_t K;  // padded to the format's step
    int zero_x2;  // t = 2 * sum(code * x) - zero_x2 * sum(x)
    const int8_t*
        xq;  // integer formats: in [-127, 127], zero beyond K, laid out as x_offset() says
    const float* x_scale;  // [n]
    const int32_t* x_sum;  // [n] sum of xq
    const float* xf;  // float formats: [n][ldx]
    const uint16_t* xh;  // FastKernels: x as Bf16PlanesArgs lays it out, n rounded up to 16 rows
    int64_t ldx;  // in elements
    int x_block;  // 1, or the kernel table's x_block(n); then xq holds n rounded up to 16 rows
    int n;
    float* y;  // [n][ldy]
    int64_t ldy;
    const float* residual;  // [n][ldy] or null; may be y itself
    const float* bias;  // [M], readable in whole row blocks, or null
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

// What a gate becomes before it multiplies `up`; kGelu has the normal distribution's integral, kGeluTanh the
// approximation of it by a hyperbolic tangent. kClamped: gate sigmoid(1.702 gate) (up + 1). Of that and
// of kSilu the gate is at most a limit, and up is within it.
enum class Glu : int { kNone, kRelu2, kSilu, kGelu, kGeluTanh, kClamped };

// One token's row: optional gate * up, optional RMSNorm, optional int8 quantisation.
struct RowwiseArgs {
    const float* x;  // [width], or [gate | up] of 2 * width
    int64_t up_offset;  // where `up` starts in x, for a Glu
    bool ungated;  // a Glu multiplies by one, and kClamped adds its one to zero
    int64_t width;
    Glu glu;
    float limit = __builtin_inff();  // of kSilu and kClamped
    const float* norm;  // [width] or null
    float eps;
    // Where it is not 0, the result is transformed in blocks, of a power of two that divides the width, a multiple of
    // 16: Hadamard / sqrt(block), after its values took `signs`, or before, where `signs_last`.
    int64_t hadamard_block;
    const float* signs;  // [width] of 1 and -1, or null
    bool signs_last;
    float* yf;  // [width] result, always written
    int8_t* yq;  // [padded width] or null
    int64_t yq_stride;  // bytes from 64 values to the next 64: 64, or 64 * x_block
    int64_t group_k;  // values of yq that share a scale; 0: all
    float* x_scale;  // with yq: one value, or one for each group
    int32_t* x_sum;  // with yq: one value, or one for every kSumK
    // What rounding leaves, as a second plane, laid out as yq is; or null. Its scales are those of the first over
    // kLowSteps, so both are digits of one integer: yf ~ x_scale / kLowSteps * (kLowSteps * yq + yq_low).
    int8_t* yq_low;
    float* x_scale_low;
    int32_t* x_sum_low;
};
constexpr int kLowSteps = 254;  // of the second plane in one of the first: 127 to either side

struct LayerNormArgs {
    const float* x;  // [width]
    const float* weight;  // [width]
    const float* bias;  // [width] or null
    int64_t width;
    double eps;
    float* y;  // [width]
};

struct RopeArgs {
    float* x;  // [n_heads][head_dim], rotated in place
    const float* cos;  // [rotary_dim / 2]
    const float* sin;
    int n_heads, head_dim;
    int rotary_dim;  // so many values at the begin of a head are rotated; even
    bool interleaved;  // pairs (2i, 2i+1) instead of (i, i + rotary_dim / 2)
};

// x <- cap * tanh(x / cap), by which |x| stays within cap.
struct CapArgs {
    float* x;  // [count]
    int64_t count;
    float cap;  // > 0
};

// What a recurrent layer keeps of a sequence, so that a token costs the same however many came before it: the last
// inputs of a causal convolution, and a matrix for each value head (recurrence.h).
constexpr int kMaxConvWidth = 16;  // positions that a convolution sees
// Columns of a head's matrix that are stored together, [k_dim][kStateColumns]: a vector lane is a column.
constexpr int kStateColumns = 16;
[[gnu::always_inline]] constexpr int64_t state_blocks(int64_t v_dim) {
    return (v_dim + kStateColumns - 1) / kStateColumns;
}

// y[t][c] = silu(sum_i weight[i][c] x[t - width + 1 + i][c]), for the tokens of one sequence in order; with gates
// y = after (bias + sum_i weight[i] (before x)[t - width + 1 + i]) instead.
struct ConvArgs {
    const float* x;  // [tokens][ldx], at the first of `channels`
    const float *before, *after;  // [tokens][ldx] likewise: the gates, or both null
    int64_t ldx, tokens, channels;
    const float* weight;  // [width][ldw], at the same channel
    const float* bias;  // likewise, or null
    int64_t ldw;
    int width;  // 1..kMaxConvWidth
    float*
        state;  // [width - 1][ldw]: the inputs before x, the oldest first; then those before what follows x
    bool fresh;  // nothing came before: `state` is not read
    float* y;  // [tokens][ldy]; may be x
    int64_t ldy;
};

// The gates of one token: q and k of unit length, q over the root of k_dim, and for each value head the decay
// exp(rate softplus(a + bias)), or one for each row of its state, and beta = strength sigmoid(b), in place of a and b.
struct GatesArgs {
    float *q, *k;  // [k_heads][k_dim]
    float *a, *b;  // [decays], [v_heads]
    const float *rate, *bias;  // [decays]
    int k_heads, v_heads;
    int64_t k_dim, decays;
    float strength;
};

// A state space's step of one head: its size is softplus(step + bias) within [least, most].
struct StateSpace {
    const float* step;  // [tokens][ldx] -> a float; null: no state space, but the gated delta rule
    float bias, rate, least, most, skip;
};

// Columns of one head's state over the tokens of one sequence, in order. The gated delta rule: with
// r = v - decay S^T k, S <- decay S + k (beta r)^T, out = S^T q. A state space, with h the size of the step:
// S <- exp(rate h) S + k (h v)^T, out = S^T q + skip v.
struct RecurrenceArgs {
    const float *q, *k;  // [tokens][ldx] -> [k_dim]
    const float *v, *decay, *beta;  // [tokens][ldx] -> [columns], a float or [k_dim], a float
    bool decays_rows;  // decay is [k_dim]
    StateSpace space;  // in the place of decay and beta
    int64_t ldx, tokens, k_dim, columns;
    float* state;  // [state_blocks(columns)][k_dim][kStateColumns]
    bool fresh;  // the state is zero, whatever is there
    float* out;  // [tokens][ldo] -> [columns]
    int64_t ldo;
};

// y = norm(x) act(gate) of a row of heads, or norm(x act(gate)); norm: RMSNorm of each head, or x where there is no
// weight.
struct GatedArgs {
    const float* x;  // [heads][head_dim]
    const float* gate;  // head h at h * gate_stride
    int64_t heads, head_dim, gate_stride;
    bool silu;  // else the sigmoid
    bool single;  // one gate for all of a head
    bool first;  // the gate comes before the norm
    const float* norm;  // head h at h * norm_stride, or null
    int64_t norm_stride;
    float eps;
    float* y;  // head h at h * y_stride
    int64_t y_stride;
};

// out[n][r] = sum_k matrix[r][k] x[n][k] for rows of a low-rank matrix. Products are rounded before they are added,
// ascending in k. Where it adds, out[n][r] += scale times that sum.
struct LowRankArgs {
    const float* tiles;  // [rows / kRowBlock, upwards][columns][kRowBlock]
    int64_t rows, columns;
    const float* x;  // [tokens][ldx]
    int64_t ldx, tokens;
    float* out;  // [tokens][ldo]: of whole blocks, unless it adds
    int64_t ldo;
    bool adds;
    float scale;
};

// How a KV page holds a position: as floats, or as integers times a float of this position and head.
enum class KvType : int { kF32, kF16, kI16, kI8 };
// Keys and values of so many bytes are rounded to [-kv_levels, kv_levels], queries to what keeps int32 sums
// exact over head_dim. The weights of a softmax have as many levels as int16 holds, for one large weight
// should not make many small ones zero.
constexpr int kMaxQueryLevels = 8191, kWeightLevels = 32767;
[[gnu::always_inline]] constexpr int kv_levels(int bytes) { return bytes == 1 ? 127 : 4095; }
[[gnu::always_inline]] constexpr int query_levels(int bytes, int64_t head_dim) {
    const int64_t most = ((int64_t{1} << 31) - 1) / (kv_levels(bytes) * head_dim);
    return static_cast<int>(most < kMaxQueryLevels ? most : kMaxQueryLevels);
}

[[gnu::always_inline]] constexpr int64_t kv_value_bytes(KvType type) {
    return type == KvType::kF32 ? 4 : type == KvType::kI8 ? 1 : 2;
}
[[gnu::always_inline]] constexpr bool kv_integers(KvType type) {
    return type == KvType::kI16 || type == KvType::kI8;
}
// Bytes of one KV head's keys (or values) in a page. The layouts: kv_pages.h.
[[gnu::always_inline]] constexpr int64_t kv_head_bytes(KvType type, int64_t head_dim) {
    return kPagePositions * (head_dim * kv_value_bytes(type) + (kv_integers(type) ? 4 : 0));
}

// The keys and values of positions that follow each other into their page.
struct KvStoreArgs {
    float *k, *v;  // [count][n_kv_heads][head_dim]; kI8 rotates them in place
    int64_t stride;  // floats from one position's to the next one's
    uint8_t *k_page, *v_page;  // [n_kv_heads][kv_head_bytes]; v_page null: keys alone
    int position_in_page,
        count;  // of the first; all are in one of the page's runs of kStoredTogether
    int n_kv_heads, head_dim;
    KvType type;
};

// Positions that have their keys in the same lines.
constexpr int kStoredTogether = 16;

constexpr int32_t kNoWindow = INT32_MAX;

// Pages of keys: where those of a KV head lie, and their numbers.
struct KeyPages {
    const uint8_t* base;
    const int32_t* pages;
    int count;
};

// A block of query rows of one KV head of one sequence.
struct AttentionArgs {
    const float* const* q;  // [rows] -> [head_dim]
    float* const* out;  // [rows] -> [head_dim]
    const int32_t* limit;  // [rows]: keys at positions < limit are seen; ascending
    const int32_t* next;  // [rows]: the position after the row's own, at most its limit; ascending
    int32_t window =
        kNoWindow;  // of the keys below `next` a row sees so many of the last; at least 1
    int rows;
    int head_dim;
    float scale;  // of a score, before it is capped
    float cap;  // scores become cap * tanh(score / cap); 0: they stay as they are
    // [rows, padded to a multiple of 16]: a base-2 logarithm that joins each row's softmax as a weight without a value
    // (attention sinks); null: none
    const float* sinks;
    const int32_t* pages;  // page table of the sequence
    const uint8_t* k_base;  // this layer's, at this KV head: + page * page_stride
    const uint8_t* v_base;
    // Where pages hold keys alone, which are the values, too: memory for the pages of a chunk, into which its keys go as
    // values. Else null.
    uint8_t* turned;
    int64_t page_stride;  // bytes
    KvType type;
    bool next_page;  // Reading
    KeyPages after;  // the keys that this thread reads after this call, if that is known
    bool
        queries_ready;  // the scratch still holds the queries: this thread's last call had the same
    uint8_t* scratch;  // AttentionKernels::scratch(head_dim) bytes, aligned to 64
    // Where chunks are computed apart: AttentionKernels::chunk writes the results of one chunk at
    // chunk * partial_stride, attention_partial(rows) floats. attention_merge makes the outputs from all of them.
    float* partial;
    int64_t partial_stride;
};
constexpr int kMaxAttentionRows = 256;
// The chunk of positions that the first row of a call, the one that sees the earliest positions, begins in.
[[gnu::always_inline]] constexpr int64_t first_attention_chunk(const AttentionArgs& a) {
    const int64_t begin = int64_t{a.next[0]} - a.window;
    return begin > 0 ? begin / kChunkPositions : 0;
}
[[gnu::always_inline]] constexpr int attention_chunks(int64_t positions) {
    return static_cast<int>((positions + kChunkPositions - 1) / kChunkPositions);
}
// The output, largest score and sum of each row.
[[gnu::always_inline]] constexpr int64_t attention_partial(int64_t rows, int64_t head_dim) {
    return rows * (head_dim + 2);
}

constexpr int kMaxPlanes = 3;

// One row of activations as the sum of `planes` bf16 numbers each, the largest first, in tiles of 16
// rows x 32 k: [16 rows][32 k][plane] tiles of [row][k].
struct Bf16PlanesArgs {
    const float* x;  // [width], padded with zeros
    int64_t width;  // a multiple of 64
    int planes;
    uint16_t* out;  // row n: at 16 * width * planes * (n / 16) + 32 * (n % 16)
};

// Float formats on a unit that multiplies bf16 (float_tiles.h): the bits differ from those of `linear`, so
// a model uses it for any number of tokens or not at all.
struct FastKernels {
    void (*linear)(const LinearArgs&) = nullptr;  // null: the unit has none
    int64_t (*scratch_bytes)(int64_t K, int n) = nullptr;
    int x_planes = 0;  // bf16 planes of an activation (Bf16PlanesArgs)
    int products = 0;  // bf16 products for one of a weight and an activation
};

// The kernels of a code layout, and nothing else. A null one is replaced by the extended unit's (dispatch.cpp).
struct LayoutKernels {
    int64_t (*tile_bytes)(int64_t K);  // bytes of tile_rows x K, which is padded
    void (*linear)(const LinearArgs&);
    int64_t (*scratch_bytes)(int64_t K, int n);
    void (*pack)(const PackArgs&);
    void (*row)(const RowArgs&);
    void (*values)(const RowArgs&, const GroupScales&,
                   int zero_x2);  // null without scales in groups
    // Whether no code of these bytes is above max_code, the greatest of the codebook; null: whatever the codebook,
    // none is.
    bool (*valid)(const uint8_t* codes, int64_t bytes, int max_code);
    // Layouts of two-bit codes only, else null.
    void (*copy_rows)(const ActiveCopyArgs&);
    void (*copy_columns)(const ActiveCopyArgs&);
    // Float formats only, else null.
    void (*rescore)(const RescoreArgs&);
    void (*make_shadow)(const ShadowArgs&);
};
// The properties of a layout, on any unit.
struct LayoutFacts {
    const char* name;  // "b2", "b8", "f32" ...
    bool integer;
    ReadLoop read_loop;
    int tile_rows;
    int source_bytes;  // bytes of an element that `pack` takes
    bool rows;  // whether weights may have a scale for each row, and in groups of k
    bool groups;
    bool minima;  // whether groups of k may have minima
    bool long_groups;  // whether activations may have a scale for each kLongGroupK
    bool even_offset;  // whether groups need an even zero_x2: whole numbers as levels
    int super_group;  // k of a group of super-blocks: 16 or 32, or 0 where there are none
    int super_offset;  // the code of level 0 in super-blocks
    int step_k;  // K is padded to a multiple of this (integer formats: to 64)
};
struct FormatKernels : LayoutFacts, LayoutKernels {
    FastKernels fast;
    // The scratch that LinearArgs::joint_tokens needs, for n tokens; null where this unit does not heed it.
    int64_t (*joint_scratch)(int n) = nullptr;
};

// The code layouts of one folder of layouts/.
struct FormatFamily {
    const FormatKernels* formats;
    int count;
};

// Attention over pages of a kind: of a whole context, or of a chunk of positions.
struct AttentionKernels {
    void (*all)(const AttentionArgs&);
    void (*chunk)(const AttentionArgs&, int64_t chunk);
    int64_t (*scratch)(int64_t head_dim);
};

// The kernels of a unit that belong to no layout. A null entry is taken from the unit that it extends (dispatch.cpp).
struct UnitKernels {
    // false: a value was not finite
    bool (*rowwise)(const RowwiseArgs&);
    bool (*layer_norm)(const LayerNormArgs&);
    bool (*rope)(const RopeArgs&);
    void (*cap)(const CapArgs&);
    void (*conv)(const ConvArgs&);
    bool (*gates)(const GatesArgs&);
    bool (*recurrence)(const RecurrenceArgs&);
    bool (*gated)(const GatedArgs&);
    void (*low_rank)(const LowRankArgs&);
    bool (*kv_store)(const KvStoreArgs&);
    AttentionKernels float_attention, integer_attention;  // by what pages hold: attention()
    void (*attention_merge)(const AttentionArgs&);
    int (*x_block)(int n);  // the layout of n tokens' activations for integer formats
    // Execute about `ops` operations (a multiply-add is two) in registers, with the unit's best int8
    // instruction or f32 fused multiply-add; return how many it really did.
    int64_t (*peak_int8)(int64_t ops);
    int64_t (*peak_f32)(int64_t ops);
    int64_t (*peak_bf16)(int64_t ops);  // null, as to_bf16_planes, where no format is fast
    void (*to_bf16_planes)(const Bf16PlanesArgs&);
    // One token and what is active (active.h); scratch: active_scratch(K, M) bytes.
    int64_t (*list_nonzero)(const int8_t* x, int64_t padded, int32_t* places, int8_t* values);
    int64_t (*linear_open_rows)(const LinearArgs&, const ActiveRows&, int64_t begin, int64_t end);
    void (*linear_columns)(const LinearArgs&, const ActiveColumns&, int64_t begin, int64_t end);

    [[gnu::always_inline]] const AttentionKernels& attention(KvType type) const {
        return kv_integers(type) ? integer_attention : float_attention;
    }
};

struct KernelTable : UnitKernels {
    const char* isa;
    const char* extends;  // the unit that replaces null kernels; "": none
    const char* needs;  // comma list of CPU features
    int rank;  // higher is preferred
    // The formats of all families, in the same order in every unit (dispatch.cpp).
    const FormatKernels* formats = nullptr;
    int n_formats = 0;
};
// Bytes for x in whole lines and a list of rows, or for the sums of whole lines of rows.
[[gnu::always_inline]] constexpr int64_t active_scratch(int64_t K, int64_t M) {
    return K + 4 * (M + kActiveLine) + kActiveLine;
}

}  // namespace sterna

// Names of the functions that units are found by: STERNA_JOIN(sterna_kernels, avx2).
#define STERNA_JOIN_(a, b) a##_##b
#define STERNA_JOIN(a, b) STERNA_JOIN_(a, b)
