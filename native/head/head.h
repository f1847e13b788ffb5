// The exact head computes the logits that can be among the k largest, bit for bit as the float head W does, and reads
// about the bytes of an int8 head. docs/explanation/exact-head.md derives the bound.
//
// W has an int8 shadow (rows s_i q_i) with float bounds of its error. An activation row x becomes two int8 planes,
// x ~ s_0 x_0 + s_1 x_1. The shadow times both planes is c_i, and |logit_i - c_i| <= E_i is certain. Let T be the k-th
// largest c_i - E_i: a row with c_i + E_i < T cannot be among the k largest. The other rows are computed from W.
// Tokens that a mask forbids do not compete. If the mask allows few tokens, they are computed from W at once, without
// reading the shadow.
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "program/near.h"
#include "program/tensors.h"
#include "runtime/memory.h"
#include "runtime/pool.h"
#include "sampling/scores.h"
#include "units/kernel_table.h"

namespace sterna {

constexpr const char* kShadowLayout = "b8";

// Upper bounds for every row of the shadow, arrays of at least M: ||W_i - s_i q_i||_2, ||s_i q_i||_2 and
// max_k |W_ik - s_i q_ik|.
struct ShadowBounds {
    const float *error = nullptr, *norm = nullptr, *peak = nullptr;
};
// Returns the bounds in a matrix [3][rows of all tiles]. Throws std::invalid_argument if weights and matrix do not fit.
ShadowBounds shadow_bounds(const Weight& floats, const Weight& shadow, const float* bounds,
                           int64_t rows, int64_t columns);

// The constants of an activation row x in
// E_i = (x_peak * peak_i + x_error * error_i + x_norm * norm_i + kUnderflow) * kSlack. No sum of row i can overflow if
// reach * (error_i + norm_i) is small enough.
struct TokenBounds {
    float x_peak, x_error, x_norm, reach;
};

// An interval [low, high] that certainly encloses the float head's logit of a row.
struct Interval {
    float low, high;
};
Interval logit_interval(const TokenBounds& x, float error, float norm, float peak, float c);

// Returns the constants of one x [K] with the planes scale[p] * codes[p][k]. fma_steps: the number of products that
// the float head adds for a logit, padding included.
TokenBounds token_bounds(const float* x, const int8_t* const codes[2], const float* scale,
                         int64_t K, int64_t fma_steps);

// The stages of a step, with a barrier between them.
enum class ScreenStage : int { kToInt8Planes, kBound, kChoose, kRescore };
constexpr int kScreenStages = 4;

class Screen {
  public:
    Screen(const Weight& floats, const Weight& shadow, const ShadowBounds& bounds)
        : floats_(floats), shadow_(shadow), bounds_(bounds), planes_(shadow.K), y_(shadow.M) {}

    const Weight& shadow() const { return shadow_; }
    // Sets where the shadow's tiles are read from.
    void place(NearTiles near) { near_ = std::move(near); }
    // Allocates memory for this many rows of x.
    void reserve(int64_t rows);
    // Prepares a step: for each row of x, which logits decide, with count <= M. Returns false if a row needs all
    // logits; then there is no step. Allocates no memory if `reserve` has allocated enough.
    bool begin(std::span<const DecidingLogits> deciding, const KernelTable& kernels,
               const Readings& readings);
    // Scratch bytes that a worker needs in a step of up to this many rows.
    int64_t scratch_bytes(const KernelTable& kernels, int64_t rows) const;
    // team: the NUMA nodes of the threads if the shadow is placed there, or null.
    Division units(ScreenStage stage, int threads, const NodeTeam* team = nullptr) const;
    // Runs units [begin, end) of a stage on one thread of a NUMA node, with its scratch. Rows that are no
    // candidates get -inf. Returns false if an activation is not finite.
    bool step(ScreenStage stage, int64_t begin, int64_t end, const Activations& x,
              const Activations& logits, uint8_t* scratch, int node = 0);

    // After a step: how many candidates a row had, how many bytes of W were read, and whether the shadow was read.
    int64_t rescored(int64_t row) const { return rows_[static_cast<size_t>(row)].candidates; }
    int64_t bytes() const;
    bool read_shadow() const { return !screened_.empty(); }
    bool is_screened(int64_t row) const { return rows_[static_cast<size_t>(row)].slot >= 0; }
    // The intervals [M] of a screened row's logits, valid from the stage kBound to the next step; NaN for forbidden
    // tokens. After kChoose, the intervals of tokens with a changed score enclose the score.
    const float* low(int64_t row) const { return low_of(rows_[static_cast<size_t>(row)]); }
    const float* high(int64_t row) const { return high_of(rows_[static_cast<size_t>(row)]); }

  private:
    struct Row {
        DecidingLogits deciding;
        int64_t
            slot;  // index among the screened rows; -1: the mask allows few tokens, and all are candidates
        TokenBounds bounds;
        double threshold;
        int64_t candidates, row_blocks;  // row_blocks: those that have a candidate
    };

    bool list_allowed(int64_t row);
    bool to_int8_planes(Row& row, const float* x);
    void shadow_products(int64_t begin, int64_t end, uint8_t* scratch, int node) const;
    void bound(const Row& row, int64_t block, float* logits);
    void block_maxima(const Row& row, int64_t block);
    void change(const Row& row);
    void choose(Row& row);
    void rescore(int64_t unit, const Activations& x, const Activations& logits) const;
    float threshold_of(const Row& row);
    Row& screened(int64_t slot) {
        return rows_[static_cast<size_t>(screened_[static_cast<size_t>(slot)])];
    }
    int32_t* row_blocks_of(const Row& row) const {
        return reinterpret_cast<int32_t*>(row_blocks_.data()) +
               (&row - rows_.data()) * row_block_count();
    }
    float* low_of(const Row& row) const { return y_.row(2 * row.slot); }  // both take the place of
    float* high_of(const Row& row) const {
        return y_.row(2 * row.slot + 1);
    }  // the planes' products
    float* block_low(const Row& row) const {
        return reinterpret_cast<float*>(block_low_.data()) + row.slot * blocks();
    }
    float* block_high(const Row& row) const {
        return reinterpret_cast<float*>(block_high_.data()) + row.slot * blocks();
    }
    int64_t blocks() const { return shadow_.tiles; }
    int64_t row_block_count() const { return (shadow_.M + kRowBlock - 1) / kRowBlock; }
    int planes() const { return static_cast<int>(2 * screened_.size()); }

    Weight floats_, shadow_;
    NearTiles near_;  // the shadow's tiles
    ShadowBounds bounds_;
    std::vector<Row> rows_;
    std::vector<int64_t> screened_;  // rows, by slot
    int64_t capacity_ = 0;  // rows that the buffers hold
    Reading reading_;
    const KernelTable* kernels_ = nullptr;  // the step's unit
    int64_t block_rows_ = 0;  // rows of a tile of the shadow
    Activations planes_, y_;  // two rows for each slot
    HugeBuffer codes_;  // [2 * slots][ld]: the planes' codes as plain rows
    HugeBuffer block_low_, block_high_;  // [slots][blocks]: the largest ends of a block
    HugeBuffer values_;  // [slots][M]: the values that choose() selects from
    HugeBuffer row_blocks_;  // [rows][row blocks]: int32 indices
};

}  // namespace sterna
