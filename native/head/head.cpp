#include "head/head.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "sampling/sampler.h"

namespace sterna {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Bound of roundings below the least normal: at most 2^16 of the float head (2^-150 each, grown by less
// than 2) and, in a plane, one of a scale times |t| < 2^31; 2^-115 in all, those of E itself included.
constexpr float kUnderflow = 0x1p-100f;
// E is six rounded operations on values that are not negative: it loses less than 6 * 2^-24.
constexpr float kSlack = 1.0f + 0x1p-20f;
// Below it no partial sum and no product with the shadow overflows (FLT_MAX is about 2^128).
constexpr float kReach = 0x1p125f;
constexpr double kHalfUlp = 0x1p-24;

// A float not below v >= 0.
float up(double v) { return static_cast<float>(v * (1 + 0x1p-22)) + 0x1p-126f; }

// sum f(k) in eight lanes and a fixed order, so that it vectorises and has one result.
template <class F>
double lane_sum(int64_t K, F f) {
    double lanes[8] = {};
    int64_t k = 0;
    for (; k + 8 <= K; k += 8)
        for (int i = 0; i < 8; ++i) lanes[i] += f(k + i);
    for (; k < K; ++k) lanes[0] += f(k);
    double sum = 0;
    for (const double lane : lanes) sum += lane;
    return sum;
}

// The largest of n floats that are no NaN; lanes, so that it vectorises.
float largest(const float* values, int64_t n) {
    float lanes[16];
    std::fill(lanes, lanes + 16, -kInfinity);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; ++j) lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
    for (; i < n; ++i) lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0];
    return *std::max_element(lanes, lanes + 16);
}

}  // namespace

TokenBounds token_bounds(const float* x, const int8_t* const codes[2], const float* scale,
                         int64_t K, int64_t fma_steps) {
    const double s0 = scale[0], s1 = scale[1];
    const auto value = [&](int64_t k) { return static_cast<double>(x[k]); };
    const auto first = [&](int64_t k) { return s0 * codes[0][k]; };  // exact: 24 + 7 bits
    const auto second = [&](int64_t k) { return s1 * codes[1][k]; };
    const double squares = lane_sum(K, [&](int64_t k) { return value(k) * value(k); });
    const double norm = std::sqrt(squares);
    const double planes = std::sqrt(lane_sum(K, [&](int64_t k) { return first(k) * first(k); })) +
                          std::sqrt(lane_sum(K, [&](int64_t k) { return second(k) * second(k); }));
    const double missed = std::sqrt(lane_sum(K, [&](int64_t k) {
        const double d = value(k) - first(k) - second(k);
        return d * d;
    }));
    // |(W_i - s_i q_i) x| <= peak_i * sum |x_k| over the large k + error_i * ||the other x_k||, for
    // any division. Moving x_k to the sum pays where |x_k| > 2 ||others|| * error_i / (peak_i K),
    // which for evenly spread errors (error = peak * sqrt(K / 3)) is sqrt(12) times the others' rms.
    double rest = squares, limit = 0;
    const auto square_below = [&](int64_t k) {
        const double v = value(k) * value(k);
        return v <= limit ? v : 0.0;
    };
    for (int round = 0; round < 3; ++round) {
        limit = 12 * rest / static_cast<double>(K);
        rest = lane_sum(K, square_below);
    }
    const double large = lane_sum(
        K, [&](int64_t k) { return value(k) * value(k) <= limit ? 0.0 : std::fabs(value(k)); });
    // Doubles lose 2^-40 of a sum of 2^16 terms at most, and `missed` as much of what it subtracts.
    const double gamma = 1.01 * kHalfUlp * static_cast<double>(fma_steps + 2) * norm;
    const double lost = missed + 0x1p-40 * (norm + planes) + 8 * kHalfUlp * planes;
    return {up(large), up(std::sqrt(rest) + gamma), up(lost + gamma), up(std::max(norm, planes))};
}

Interval logit_interval(const TokenBounds& x, float error, float norm, float peak, float c) {
    const float e = (x.x_peak * peak + x.x_error * error + x.x_norm * norm + kUnderflow) * kSlack;
    const bool bounded = (error + norm) * x.reach < kReach;  // false for NaN
    return {bounded ? c - e : -kInfinity, bounded ? c + e : kInfinity};
}

void Screen::begin(std::span<const DecidingLogits> deciding, const KernelTable& kernels,
                   const Reading& reading) {
    reading_ = reading;
    kernels_ = &kernels;
    block_rows_ = kernels.formats[shadow_.format].tile_rows;
    rows_.clear();
    for (const DecidingLogits& of_row : deciding) rows_.push_back({of_row, {}, 0, 0, 0});
    const auto rows = static_cast<int64_t>(deciding.size());
    if (rows <= capacity_) return;
    const auto floats = [](int64_t n) { return HugeBuffer(static_cast<size_t>(n) * 4); };
    planes_.reserve(2 * rows);
    y_.reserve(2 * rows);
    codes_ = HugeBuffer(static_cast<size_t>(2 * rows * planes_.ld));
    block_low_ = floats(rows * blocks());
    block_high_ = floats(rows * blocks());
    values_ = floats(rows * shadow_.M);
    seen_ = HugeBuffer(static_cast<size_t>(rows * shadow_.M));
    row_blocks_ = floats(rows * row_block_count());
    capacity_ = rows;
}

int64_t Screen::scratch_bytes() const {
    return kernels_->formats[shadow_.format].scratch_bytes(shadow_.padded_k, planes());
}

Division Screen::units(ScreenStage stage, int threads) const {
    const auto rows = static_cast<int64_t>(rows_.size());
    switch (stage) {
        case ScreenStage::kToInt8Planes:
        case ScreenStage::kChoose:
            return {rows};
        case ScreenStage::kBound:
            return divide_tiles(shadow_.tiles, planes(), threads, reading_);
        case ScreenStage::kRescore:
            break;
    }
    int64_t total = 0;
    for (const auto& row : rows_) total += (row.row_blocks + kRescoreJobs - 1) / kRescoreJobs;
    return {total};
}

int64_t Screen::bytes() const {
    int64_t row_blocks = 0;
    for (const auto& row : rows_) row_blocks += row.row_blocks;
    return row_blocks * floats_.tile_bytes /
           (kernels_->formats[floats_.format].tile_rows / kRowBlock);
}

bool Screen::step(ScreenStage stage, int64_t begin, int64_t end, const Activations& x,
                  const Activations& logits, uint8_t* scratch) {
    bool finite = true;
    if (stage == ScreenStage::kBound) shadow_products(begin, end, scratch);
    for (int64_t unit = begin; unit < end; ++unit) {
        if (stage == ScreenStage::kToInt8Planes) {
            finite &= to_int8_planes(unit, x.row(unit));
        } else if (stage == ScreenStage::kBound) {
            // The tile's products are still in the cache.
            for (size_t row = 0; row < rows_.size(); ++row)
                bound(static_cast<int64_t>(row), unit, logits);
        } else if (stage == ScreenStage::kChoose) {
            choose(unit);
        } else {
            rescore(unit, x, logits);
        }
    }
    return finite;
}

// Writes x as two int8 planes, the second of what the first has missed.
bool Screen::to_int8_planes(int64_t row, const float* x) {
    const int64_t K = shadow_.K, n = 2 * row;
    const int block = kernels_->x_block(planes());
    auto* codes = reinterpret_cast<int8_t*>(codes_.data()) + n * planes_.ld;
    const int8_t* const flat[2] = {codes, codes + planes_.ld};
    const float* scale = planes_.scales() + n;
    float* rest = planes_.row(n + 1);
    auto& bounds = rows_[static_cast<size_t>(row)].bounds;
    bounds = {kInfinity, kInfinity, kInfinity, kInfinity};  // keeps NaN out of the selection
    for (int plane = 0; plane < 2; ++plane) {
        RowwiseArgs a{};
        a.x = plane == 0 ? x : rest;
        a.width = K;
        a.yf = planes_.row(n + plane);
        planes_.quantize_into(a, n + plane, block, 0);
        if (!kernels_->rowwise(a)) return false;
        for (int64_t k = 0; k < K; k += kPad)
            std::memcpy(codes + plane * planes_.ld + k, a.yq + k / kPad * a.yq_stride, kPad);
        for (int64_t k = 0; plane == 0 && k < K; ++k)
            rest[k] = static_cast<float>(x[k] - static_cast<double>(scale[0]) * codes[k]);
    }
    bounds = token_bounds(x, flat, scale, K, floats_.padded_k);
    return true;
}

void Screen::shadow_products(int64_t begin, int64_t end, uint8_t* scratch) const {
    LinearArgs a = linear_args(shadow_, planes_, planes(), kernels_->x_block(planes()), y_);
    a.scratch = scratch;
    a.reading = reading_;
    a.tile_begin = begin;
    a.tile_end = end;
    kernels_->formats[shadow_.format].linear(a);
}

// Puts the intervals of one block of rows in place of the planes' products; every logit starts as -inf.
void Screen::bound(int64_t row, int64_t block, const Activations& logits) {
    const int64_t begin = block * block_rows_;
    const int64_t end = std::min(begin + block_rows_, shadow_.M);
    const TokenBounds x = rows_[static_cast<size_t>(row)].bounds;
    float *low = plane_y(2 * row), *high = plane_y(2 * row + 1), *out = logits.row(row);
    const ShadowBounds& b = bounds_;
    for (int64_t i = begin; i < end; ++i) {
        const auto interval = logit_interval(x, b.error[i], b.norm[i], b.peak[i], low[i] + high[i]);
        low[i] = interval.low;
        high[i] = interval.high;
    }
    std::fill(out + begin, out + end, -kInfinity);
    block_maxima(row, block);
}

void Screen::block_maxima(int64_t row, int64_t block) {
    const int64_t begin = block * block_rows_, at = row * blocks() + block;
    const int64_t n = std::min(block_rows_, shadow_.M - begin);
    reinterpret_cast<float*>(block_low_.data())[at] = largest(low(row) + begin, n);
    reinterpret_cast<float*>(block_high_.data())[at] = largest(high(row) + begin, n);
}

// The sampler's penalty never decreases with the logit, roundings included, so that the penalised
// ends of an interval hold the penalised logit. Each token of history is penalised once.
void Screen::penalise(int64_t row) {
    const DecidingLogits& deciding = rows_[static_cast<size_t>(row)].deciding;
    if (deciding.penalty == 1 || deciding.history.empty()) return;
    float *low = plane_y(2 * row), *high = plane_y(2 * row + 1);
    uint8_t* seen = seen_.data() + row * shadow_.M;
    const auto valid = [&](int32_t token) { return token >= 0 && token < shadow_.M; };
    for (const int32_t token : deciding.history) {
        if (!valid(token) || seen[token]) continue;
        seen[token] = 1;
        low[token] = penalised(low[token], deciding.penalty);
        high[token] = penalised(high[token], deciding.penalty);
    }
    for (const int32_t token : deciding.history)
        if (valid(token)) seen[token] = 0;
    for (int64_t block = 0; block < blocks(); ++block) block_maxima(row, block);
}

// The count-th largest lower bound: at least so many logits are not below it.
float Screen::threshold_of(int64_t row) {
    const int64_t top = rows_[static_cast<size_t>(row)].deciding.count, n = blocks();
    const float* most = reinterpret_cast<float*>(block_low_.data()) + row * n;
    float* values = reinterpret_cast<float*>(values_.data()) + row * shadow_.M;
    const auto nth = [&](int64_t count) {
        std::nth_element(values, values + (top - 1), values + count, std::greater<>());
        return values[top - 1];
    };
    // The top-th largest of the blocks' maxima is a lower bound of it that few values pass.
    float floor = -kInfinity;
    if (top <= n) {
        std::copy_n(most, n, values);
        floor = nth(n);
    }
    const float* low = this->low(row);
    int64_t count = 0;
    for (int64_t block = 0; block < n; ++block) {
        if (most[block] < floor) continue;
        const int64_t begin = block * block_rows_, end = std::min(begin + block_rows_, shadow_.M);
        for (int64_t i = begin; i < end; ++i)
            if (low[i] >= floor) values[count++] = low[i];
    }
    return nth(count);
}

// Lists the row blocks that hold a row whose interval reaches the threshold.
void Screen::choose(int64_t row) {
    Row& r = rows_[static_cast<size_t>(row)];
    penalise(row);
    r.threshold = threshold_of(row) - r.deciding.gap;
    auto* found = reinterpret_cast<int32_t*>(row_blocks_.data()) + row * row_block_count();
    const float* most = reinterpret_cast<float*>(block_high_.data()) + row * blocks();
    const float* high = this->high(row);
    for (int64_t block = 0; block < blocks(); ++block) {
        if (most[block] < r.threshold) continue;
        const int64_t begin = block * block_rows_, end = std::min(begin + block_rows_, shadow_.M);
        for (int64_t i = begin; i < end; i += kRowBlock) {
            int64_t open = 0;
            for (int64_t j = i; j < std::min(i + kRowBlock, end); ++j)
                open += high[j] >= r.threshold;
            if (open) found[r.row_blocks++] = static_cast<int32_t>(i / kRowBlock);
            r.candidates += open;
        }
    }
}

void Screen::rescore(int64_t unit, const Activations& x, const Activations& logits) const {
    int64_t row = 0;
    for (;; ++row) {
        const int64_t row_blocks = rows_[static_cast<size_t>(row)].row_blocks;
        const int64_t here = (row_blocks + kRescoreJobs - 1) / kRescoreJobs;
        if (unit < here) break;
        unit -= here;
    }
    const Row& r = rows_[static_cast<size_t>(row)];
    const int64_t first = unit * kRescoreJobs;
    float y[kRescoreJobs * kRowBlock];
    RescoreArgs a{};
    a.codes = floats_.codes;
    a.tile_bytes = floats_.tile_bytes;
    a.K = floats_.padded_k;
    a.x = x.row(row);
    a.row_blocks =
        reinterpret_cast<const int32_t*>(row_blocks_.data()) + row * row_block_count() + first;
    a.jobs = static_cast<int>(std::min<int64_t>(kRescoreJobs, r.row_blocks - first));
    a.y = y;
    kernels_->formats[floats_.format].rescore(a);
    const float* high = this->high(row);
    for (int job = 0; job < a.jobs; ++job)
        for (int i = 0; i < kRowBlock; ++i) {
            const int64_t m = int64_t{a.row_blocks[job]} * kRowBlock + i;
            if (m < shadow_.M && high[m] >= r.threshold)
                logits.row(row)[m] = y[job * kRowBlock + i];
        }
}

}  // namespace sterna
