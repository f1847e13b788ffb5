// The exact head: logits of the rows that can be among the k largest, equal bit for bit to those of
// the float head W, for about the bytes of an int8 head. docs/exact-head.md derives the bound.
//
// W has an int8 shadow (rows s_i q_i) with float bounds of its error. An activation row x becomes
// two int8 planes, x ~ s_0 x_0 + s_1 x_1. The shadow times both planes gives c_i, and
// |logit_i - c_i| <= E_i for certain. With T the k-th largest c_i - E_i, a row with c_i + E_i < T
// cannot be among the k largest. The others are computed from W.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "program/division.h"
#include "program/tensors.h"
#include "runtime/memory.h"
#include "runtime/pool.h"
#include "units/kernel_table.h"

namespace sterna {

// Which logits of a row decide: the `count` largest (0: all) and those at most `gap` below them, of
// logits that the sampler's repetition penalty has changed for the tokens of history.
struct DecidingLogits {
    int32_t count = 0;
    double gap = 0;
    float penalty = 1;
    std::span<const int32_t> history{};
};

// Upper bounds for every row of the shadow, each [M] at least: ||W_i - s_i q_i||_2, ||s_i q_i||_2 and
// max_k |W_ik - s_i q_ik|.
struct ShadowBounds {
    const float *error = nullptr, *norm = nullptr, *peak = nullptr;
};

// E_i = (x_peak * peak_i + x_error * error_i + x_norm * norm_i + kUnderflow) * kSlack, and no sum
// of row i can overflow if reach * (error_i + norm_i) is small enough.
struct TokenBounds {
    float x_peak, x_error, x_norm, reach;
};

// [low, high] holds the float head's logit of a row, for certain.
struct Interval {
    float low, high;
};
Interval logit_interval(const TokenBounds& x, float error, float norm, float peak, float c);

// The constants of one x [K] whose planes are scale[p] * codes[p][k]; fma_steps: products that the
// float head adds up for one logit, padding included.
TokenBounds token_bounds(const float* x, const int8_t* const codes[2], const float* scale,
                         int64_t K, int64_t fma_steps);

// The stages of a step, with a barrier between two of them.
enum class ScreenStage : int { kToInt8Planes, kBound, kChoose, kRescore };
constexpr int kScreenStages = 4;

class Screen {
  public:
    Screen(const Weight& floats, const Weight& shadow, const ShadowBounds& bounds)
        : floats_(floats), shadow_(shadow), bounds_(bounds), planes_(shadow.K), y_(shadow.M) {}

    // Before a step: for each row of x to screen, which logits decide; 1 <= count <= M. Allocates
    // only where there are more rows than ever before.
    void begin(std::span<const DecidingLogits> deciding, const KernelTable& kernels,
               const Reading& reading);
    int64_t scratch_bytes() const;  // bytes that a worker needs in this step
    Division units(ScreenStage stage, int threads) const;
    // Runs units [begin, end) of a stage on one thread with its scratch. A row that is no candidate gets -inf.
    // Returns false where an activation is not finite.
    bool step(ScreenStage stage, int64_t begin, int64_t end, const Activations& x,
              const Activations& logits, uint8_t* scratch);

    // After a step: the candidates of a row, and the bytes of W that the row blocks of all rows have.
    int64_t rescored(int64_t row) const { return rows_[static_cast<size_t>(row)].candidates; }
    int64_t bytes() const;
    // The intervals of a row's logits, [M], from the stage kBound to the next step; after kChoose those
    // of history are penalised.
    const float* low(int64_t row) const { return plane_y(2 * row); }  // they take the place of
    const float* high(int64_t row) const { return plane_y(2 * row + 1); }  // the planes' products

  private:
    struct Row {
        DecidingLogits deciding;
        TokenBounds bounds;
        double threshold;
        int64_t candidates, row_blocks;  // row_blocks: those with a candidate among their rows
    };

    bool to_int8_planes(int64_t row, const float* x);
    void shadow_products(int64_t begin, int64_t end, uint8_t* scratch) const;
    void bound(int64_t row, int64_t block, const Activations& logits);
    void block_maxima(int64_t row, int64_t block);
    void penalise(int64_t row);
    void choose(int64_t row);
    void rescore(int64_t unit, const Activations& x, const Activations& logits) const;
    float threshold_of(int64_t row);
    int64_t blocks() const { return shadow_.tiles; }
    int64_t row_block_count() const { return (shadow_.M + kRowBlock - 1) / kRowBlock; }
    int planes() const { return static_cast<int>(2 * rows_.size()); }
    float* plane_y(int64_t n) const { return y_.row(n); }

    Weight floats_, shadow_;
    ShadowBounds bounds_;
    std::vector<Row> rows_;
    int64_t capacity_ = 0;  // rows that the buffers hold
    Reading reading_;
    const KernelTable* kernels_ = nullptr;  // the step's unit
    int64_t block_rows_ = 0;  // rows of a tile of the shadow
    Activations planes_, y_;  // two rows for each row of x
    HugeBuffer codes_;  // [2 * rows][ld]: the planes' codes as plain rows
    HugeBuffer block_low_, block_high_;  // [rows][blocks]: the largest of a block
    HugeBuffer values_;  // [rows][M]: what choose() selects from
    HugeBuffer seen_;  // [rows][M] bytes, all 0 between two uses
    HugeBuffer row_blocks_;  // [rows][row blocks]: int32 indices
};

}  // namespace sterna
