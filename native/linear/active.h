// Faster than the memory allows, with the same bits: weights that meet a zero are not read.
//
// A layer down(norm(relu(gate)^2 * up)) multiplies `down` with many zeros, and `up` by many. In an integer sum a
// zero adds nothing, and relu(gate) = 0 makes the product 0 whatever `up` is. So one token needs the rows of `up`
// whose gate is open, and the columns of `down` whose activation is not 0. A line of a format's tile holds 48 or 64
// rows, or 4 columns. So both matrices have a copy of two bits a code, whose rows, or columns, can be read one by one:
//   rows:    row m is lines of 256 consecutive k. Byte b of a line: k = 64 f + b in bits 2f + 1 .. 2f, f = 0..3
//   columns: column k is lines of 256 consecutive rows. Byte 16 q + r of a line: row 64 q + 16 f + r likewise, so
//            that four columns, taken byte by byte in turn, are a step of each of four tiles of layout b2
// active_copies.h makes them.
// Runs (a row's or column's lines) are read a block at a time: the next block is asked for into L2, while this one is
// read line by line *across* its runs. That reaches 0.62 to 0.83 of a sequential read on Zen 4 and 0.40 to 0.59 on
// Zen 3. Reading run by run, as they lie, reaches 0.32 to 0.53 on Zen 4.
#pragma once
#include "layouts/few_bits/b2.h"
#include "layouts/layout.h"
#include "linear/linear.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

constexpr int kLineCodes = sterna::kActiveLine;
using sterna::kActiveBlock;

// ---- What is active

// Lists the values that are not 0 and their places, then zeros up to a whole block.
int64_t list_nonzero(const int8_t* x, int64_t padded, int32_t* places, int8_t* values) {
    int64_t count = 0;
    for (int64_t i = 0; i < padded; i += 64)
        for (uint64_t mask = b_nonzero(x + i); mask; mask &= mask - 1) {
            const int64_t at = i + __builtin_ctzll(mask);
            places[count] = static_cast<int32_t>(at);
            values[count++] = x[at];
        }
    for (int64_t i = count; i % kActiveBlock; ++i) {
        places[i] = 0;
        values[i] = 0;
    }
    return count;
}

// Lists the rows of [begin, end) whose gate relu leaves open: it is greater than 0, or NaN.
inline int64_t list_open(const float* gate, int64_t begin, int64_t end, int32_t* rows) {
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) {
        rows[count] = static_cast<int32_t>(i);
        count += !(gate[i] <= 0.0f);
    }
    return count;
}

// Asks for the lines [begin, end) of runs, run by run, a line at a time: bursts of requests would fill the core's
// buffers for misses, and the arithmetic would wait.
class AskedRuns {
  public:
    AskedRuns(const uint8_t* copy, int64_t stride, const int32_t* runs, int64_t count,
              int64_t begin, int64_t end)
        : copy_(copy + begin * kLine),
          stride_(stride),
          bytes_((end - begin) * kLine),
          runs_(runs),
          end_(runs + count) {
        if (count > 0) begin_run();
    }
    void ask_all() {
        while (runs_ != end_) ask_line();
    }
    void ask_line() {
        if (runs_ == end_) return;
        prefetch_l2(at_);
        at_ += kLine;
        if (at_ == run_end_ && ++runs_ != end_) begin_run();
    }

  private:
    void begin_run() {
        at_ = copy_ + *runs_ * stride_;
        run_end_ = at_ + bytes_;
    }
    const uint8_t* copy_;
    int64_t stride_, bytes_;
    const int32_t *runs_, *end_;
    const uint8_t *at_ = nullptr, *run_end_ = nullptr;
};

// ---- Single rows

inline int32_t lane_sum(VI a) {
    int32_t lanes[kLanes], sum = 0;
    i_store(lanes, a);
    for (const int32_t lane : lanes) sum += lane;
    return sum;
}

// Adds the 256 products of a line of a row and x.
inline VI line_dot(VI sum, const uint8_t* line, const int8_t* x) {
    VI run = kPairSums16 ? i_set1(0) : sum;
    STERNA_UNROLL(8)
    for (int part = 0; part < kParts; ++part) {
        const VI v = i_load(line + 4 * kLanes * part), three = i_set1(0x03030303);
        const int8_t* at = x + 4 * kLanes * part;
        run = run_dot(run, i_and(v, three), i_load(at));
        run = run_dot(run, i_and(i_shr<2>(v), three), i_load(at + kLine));
        run = run_dot(run, i_and(i_shr<4>(v), three), i_load(at + 2 * kLine));
        run = run_dot(run, i_and(i_shr<6>(v), three), i_load(at + 3 * kLine));
    }
    static_assert(4 * kParts <= kRunSteps<3>);
    return kPairSums16 ? run_end(sum, run) : run;
}

// Computes rows [begin, end) of a copy for one token: y of those that the gate leaves open, 0 for the others. Returns
// how many are open. Where so many are open that reading the tiles is faster, it does nothing and returns -1.
int64_t linear_open_rows(const sterna::LinearArgs& a, const sterna::ActiveRows& s, int64_t begin,
                         int64_t end) {
    // x is copied to whole lines: the row of activations may end before its last line does.
    auto* x = reinterpret_cast<int8_t*>(a.scratch);
    const int64_t lines = s.stride / kLine, padded = lines * kLineCodes;
    auto* rows = reinterpret_cast<int32_t*>(a.scratch + padded);
    const int64_t count = list_open(s.gate, begin, end, rows);
    if (sterna::mostly_active(count, end - begin)) return -1;
    AskedRuns(s.copy, s.stride, rows, count < kActiveBlock ? count : kActiveBlock, 0, lines)
        .ask_all();
    __builtin_memcpy(x, a.xq, static_cast<size_t>(a.K));
    __builtin_memset(x + a.K, 0, static_cast<size_t>(padded - a.K));
    __builtin_memset(s.y + begin, 0, static_cast<size_t>(end - begin) * 4);
    const auto row = [&](int64_t i) { return s.copy + rows[i] * s.stride; };
    for (int64_t from = 0; from < count; from += kActiveBlock) {
        const int64_t left = count - from;
        const int n = static_cast<int>(left < kActiveBlock ? left : kActiveBlock);
        const int64_t rest = left - n;
        const int next = static_cast<int>(rest < kActiveBlock ? rest : kActiveBlock);
        VI sums[kActiveBlock];
        for (int i = 0; i < n; ++i) sums[i] = i_set1(0);
        AskedRuns asked(s.copy, s.stride, rows + from + n, next, 0, lines);
        for (int64_t line = 0; line < lines; ++line)
            for (int i = 0; i < n; ++i) {
                asked.ask_line();
                sums[i] = line_dot(sums[i], row(from + i) + line * kLine, x + line * kLineCodes);
            }
        for (int i = 0; i < n; ++i) {
            const int32_t t = 2 * lane_sum(sums[i]) - a.zero_x2 * a.x_sum[0];
            const int64_t m = rows[from + i];
            s.y[m] = static_cast<float>(t) * (s.scale[m] * a.x_scale[0]);
        }
    }
    return count;
}

// ---- Single columns

// Steps of b2 whose sums stay in registers; where pair sums are int16 they fit.
constexpr int kColumnSteps = 8;
static_assert(run_fits<b2>(kColumnSteps* b2::kStepK));
static_assert(kActiveBlock % (kColumnSteps * b2::kStepK) == 0);

// Computes y of the rows of lines [begin, end), for one token, from the columns that are listed.
void linear_columns(const sterna::LinearArgs& args, const sterna::ActiveColumns& s, int64_t begin,
                    int64_t end) {
    constexpr int P = Block<b2, 1>::P, C = Block<b2, 1>::C, kTiles = 4;  // tiles of b2 in a line
    constexpr int kSums = kParts * b2::kRowBlocks, kSteps = kActiveBlock / b2::kStepK;
    sterna::LinearArgs a = args;
    a.reading.prefetch_bytes = 0;
    if (s.count > 0) AskedRuns(s.copy, s.stride, s.places, kActiveBlock, begin, end).ask_all();
    auto* sums = reinterpret_cast<VI*>(a.scratch);
    for (int64_t i = 0; i < (end - begin) * kTiles * kSums; ++i) sums[i] = b2::zero();
    alignas(64) uint8_t steps[kTiles][kSteps * kLine];
    const auto column = [&](int64_t i) { return s.copy + s.places[i] * s.stride; };
    for (int64_t from = 0; from < s.count; from += kActiveBlock) {
        a.xq = s.values + from;
        const int next = from + kActiveBlock < s.count ? kActiveBlock : 0;
        AskedRuns asked(s.copy, s.stride, s.places + from + kActiveBlock, next, begin, end);
        for (int64_t line = begin; line < end; ++line) {
            for (int i = 0; i < kSteps; ++i) {
                const uint8_t* four[4];
                for (int j = 0; j < 4; ++j) {
                    asked.ask_line();
                    four[j] = column(from + 4 * i + j) + line * kLine;
                }
                b_interleave(four, steps[0] + i * kLine, sizeof steps[0]);
            }
            for (int tile = 0; tile < kTiles; ++tile) {
                VI* sum = sums + ((line - begin) * kTiles + tile) * kSums;
                for (int i = 0; i < kSteps; i += kColumnSteps)
                    for (int part = 0; part < kParts; part += P)
                        tile_turn<b2, 1, P, C>(a, b2::Levels(a.levels), steps[tile] + i * kLine,
                                               4 * i, 4 * (i + kColumnSteps), 0, part,
                                               sum + part * b2::kRowBlocks);
            }
        }
    }
    for (int64_t tile = begin * kTiles; tile < end * kTiles; ++tile)
        for (int part = 0; part < kParts; ++part)
            for (int g = 0; g < b2::kRowBlocks; ++g) {
                const VI* sum =
                    sums + (tile - begin * kTiles) * kSums + part / P * P * b2::kRowBlocks;
                finish<b2>(a, sum[sum_at<b2, P>(0, part % P, g)], 0, g,
                           (tile * b2::kRowBlocks + g) * sterna::kRowBlock + kLanes * part);
            }
}

}  // namespace
