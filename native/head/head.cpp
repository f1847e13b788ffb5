#include "head/head.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <stdexcept>

#include "units/dispatch.h"

namespace sterna {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Both ends of a forbidden token's interval: no comparison with NaN is true.
constexpr float kNoInterval = std::numeric_limits<float>::quiet_NaN();
// If a mask leaves at most one row block of this many, these are computed without the shadow: a row block of bf16 has
// the bytes of two of the shadow, and is not read in sequence.
constexpr int64_t kListedShare = 8;
// A bound for all roundings below the least normal number: at most 2^16 in the float head (2^-150 each, grown by less
// than 2) and, in a plane, one of a scale times |t| < 2^31. Together with those of E itself they are at most 2^-115.
constexpr float kUnderflow = 0x1p-100f;
// E takes six rounded operations on values that are not negative, and loses less than 6 * 2^-24.
constexpr float kSlack = 1.0f + 0x1p-20f;
// Below this reach, no partial sum and no product with the shadow overflows (FLT_MAX is about 2^128).
constexpr float kReach = 0x1p125f;
constexpr double kHalfUlp = 0x1p-24;

// Returns a float that is not below v >= 0.
float up(double v) { return static_cast<float>(v * (1 + 0x1p-22)) + 0x1p-126f; }

// Sums f(k) in eight lanes and a fixed order, so that it vectorises with one result.
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

// Returns the largest of n floats, none of them a NaN. It works in lanes, so that it vectorises.
float largest(const float* values, int64_t n) {
    float lanes[16];
    std::fill(lanes, lanes + 16, -kInfinity);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; ++j) lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
    for (; i < n; ++i) lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0];
    return *std::max_element(lanes, lanes + 16);
}

void require_fit(bool fits, const char* rule) {
    if (!fits) throw std::invalid_argument(rule);
}

}  // namespace

ShadowBounds shadow_bounds(const Weight& floats, const Weight& shadow, const float* bounds,
                           int64_t rows, int64_t columns) {
    const auto& formats = all_tables().front()->formats;
    require_fit(formats[floats.format].rescore != nullptr && !floats.scale,
                "head: an exact head has float weights without scales");
    require_fit(shadow.format == format_index(kShadowLayout) && shadow.M == floats.M &&
                    shadow.K == floats.K && floats.padded_k <= kMaxIntegerK && floats.M >= 1,
                "shadow: does not fit the head");
    const int64_t of_tiles = shadow.tiles * formats[shadow.format].tile_rows;
    require_fit(rows == 3 && columns == of_tiles,
                "bounds: must have three values for each row of the shadow");
    return {bounds, bounds + of_tiles, bounds + 2 * of_tiles};
}

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
    // |(W_i - s_i q_i) x| <= peak_i * sum |x_k| over the large k + error_i * ||the other x_k||, whichever k
    // count as large. Counting x_k as large pays if |x_k| > 2 ||others|| * error_i / (peak_i K). For evenly
    // spread errors (error = peak * sqrt(K / 3)), that is sqrt(12) times the others' rms.
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
    // Doubles lose at most 2^-40 of a sum of 2^16 terms, and `missed` loses as much of what it subtracts.
    const double gamma = 1.01 * kHalfUlp * static_cast<double>(fma_steps + 2) * norm;
    const double lost = missed + 0x1p-40 * (norm + planes) + 8 * kHalfUlp * planes;
    return {up(large), up(std::sqrt(rest) + gamma), up(lost + gamma), up(std::max(norm, planes))};
}

Interval logit_interval(const TokenBounds& x, float error, float norm, float peak, float c) {
    const float e = (x.x_peak * peak + x.x_error * error + x.x_norm * norm + kUnderflow) * kSlack;
    const bool bounded = (error + norm) * x.reach < kReach;  // false for NaN
    return {bounded ? c - e : -kInfinity, bounded ? c + e : kInfinity};
}

bool Screen::begin(std::span<const DecidingLogits> deciding, const KernelTable& kernels,
                   const Readings& readings) {
    reading_ = readings.of(kernels.formats[shadow_.format].read_loop);
    kernels_ = &kernels;
    block_rows_ = kernels.formats[shadow_.format].tile_rows;
    rows_.clear();
    screened_.clear();
    reserve(static_cast<int64_t>(deciding.size()));
    for (const DecidingLogits& of_row : deciding) {
        if (of_row.raw) return false;
        const auto row = static_cast<int64_t>(rows_.size());
        rows_.push_back({of_row, -1, {}, 0, 0, 0});
        if (list_allowed(row)) continue;
        if (of_row.count == 0) return false;
        rows_.back().slot = std::ssize(screened_);
        screened_.push_back(row);
    }
    return true;
}

void Screen::reserve(int64_t rows) {
    if (rows <= capacity_) return;
    const auto floats = [](int64_t n) { return HugeBuffer(static_cast<size_t>(n) * 4); };
    planes_.reserve(2 * rows);
    y_.reserve(2 * rows);
    codes_ = HugeBuffer(static_cast<size_t>(2 * rows * planes_.ld));
    block_low_ = floats(rows * blocks());
    block_high_ = floats(rows * blocks());
    values_ = floats(rows * shadow_.M);
    row_blocks_ = floats(rows * row_block_count());
    rows_.reserve(static_cast<size_t>(rows));
    screened_.reserve(static_cast<size_t>(rows));
    capacity_ = rows;
}

// Lists the row blocks with an allowed row. If they are too many, lists none and returns false.
bool Screen::list_allowed(int64_t row) {
    static_assert(kRowBlock == 16);
    Row& r = rows_[static_cast<size_t>(row)];
    const TokenMask& allowed = r.deciding.allowed;
    if (allowed.all()) return false;
    const int64_t most = row_block_count() / kListedShare;
    int32_t* found = row_blocks_of(r);
    for (int64_t first = 0; first < shadow_.M; first += 32) {
        const int64_t there = std::min<int64_t>(32, shadow_.M - first);
        const uint32_t word = allowed.word(first / 32) & (~0u >> (32 - there));
        for (int half = 0; half < 2; ++half) {
            const uint32_t rows = word >> (16 * half) & 0xFFFF;
            if (!rows) continue;
            r.candidates += std::popcount(rows);
            if (r.row_blocks == most) {
                r.candidates = r.row_blocks = 0;
                return false;
            }
            found[r.row_blocks++] = static_cast<int32_t>(first / kRowBlock) + half;
        }
    }
    return true;
}

int64_t Screen::scratch_bytes(const KernelTable& kernels, int64_t rows) const {
    return kernels.formats[shadow_.format].scratch_bytes(shadow_.padded_k,
                                                         static_cast<int>(2 * rows));
}

Division Screen::units(ScreenStage stage, int threads, const NodeTeam* team) const {
    switch (stage) {
        case ScreenStage::kToInt8Planes:
            return {std::ssize(rows_)};
        case ScreenStage::kChoose:
            return {std::ssize(screened_)};
        case ScreenStage::kBound: {
            if (screened_.empty()) return {0};
            Division all = divide_tiles(shadow_.tiles, planes(), threads, reading_);
            if (near_.in_parts()) all.team = team;
            return all;
        }
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
                  const Activations& logits, uint8_t* scratch, int node) {
    bool finite = true;
    if (stage == ScreenStage::kBound) shadow_products(begin, end, scratch, node);
    for (int64_t unit = begin; unit < end; ++unit) {
        if (stage == ScreenStage::kToInt8Planes) {
            if (is_screened(unit)) {
                finite &= to_int8_planes(rows_[static_cast<size_t>(unit)], x.row(unit));
            } else {
                std::fill_n(logits.row(unit), shadow_.M, -kInfinity);
            }
        } else if (stage == ScreenStage::kBound) {
            // The tile's products are still in the cache.
            for (const int64_t row : screened_)
                bound(rows_[static_cast<size_t>(row)], unit, logits.row(row));
        } else if (stage == ScreenStage::kChoose) {
            choose(screened(unit));
        } else {
            rescore(unit, x, logits);
        }
    }
    return finite;
}

// Writes x as two int8 planes; the second rounds the remainder of the first.
bool Screen::to_int8_planes(Row& row, const float* x) {
    const int64_t K = shadow_.K, n = 2 * row.slot;
    const int block = kernels_->x_block(planes());
    auto* codes = reinterpret_cast<int8_t*>(codes_.data()) + n * planes_.ld;
    const int8_t* const flat[2] = {codes, codes + planes_.ld};
    const float* scale = planes_.scales() + n;
    float* rest = planes_.row(n + 1);
    row.bounds = {kInfinity, kInfinity, kInfinity, kInfinity};  // keeps NaN out of the selection
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
    row.bounds = token_bounds(x, flat, scale, K, floats_.padded_k);
    return true;
}

void Screen::shadow_products(int64_t begin, int64_t end, uint8_t* scratch, int node) const {
    LinearArgs a = linear_args(shadow_, planes_, planes(), kernels_->x_block(planes()), y_);
    a.scratch = scratch;
    a.reading = reading_;
    const auto& format = kernels_->formats[shadow_.format];
    for (a.tile_end = begin; a.tile_end < end; a.scratch_ready = true) {
        a.tile_begin = a.tile_end;
        a.tile_end = end;
        a.codes = near_.at(shadow_, format.tile_rows, a.tile_begin, node, a.tile_end).codes;
        format.linear(a);
    }
}

// Replaces the planes' products of one block of rows with the intervals, and sets every logit to -inf.
void Screen::bound(const Row& row, int64_t block, float* logits) {
    const int64_t begin = block * block_rows_;
    const int64_t end = std::min(begin + block_rows_, shadow_.M);
    const TokenBounds x = row.bounds;
    float *low = low_of(row), *high = high_of(row);
    const ShadowBounds& b = bounds_;
    for (int64_t i = begin; i < end; ++i) {
        const auto interval = logit_interval(x, b.error[i], b.norm[i], b.peak[i], low[i] + high[i]);
        low[i] = interval.low;
        high[i] = interval.high;
    }
    const TokenMask& allowed = row.deciding.allowed;
    for (int64_t i = begin; i < end && !allowed.all(); ++i)
        if (!allowed.allows(i)) low[i] = high[i] = kNoInterval;
    std::fill(logits + begin, logits + end, -kInfinity);
    block_maxima(row, block);
}

void Screen::block_maxima(const Row& row, int64_t block) {
    const int64_t begin = block * block_rows_;
    const int64_t n = std::min(block_rows_, shadow_.M - begin);
    block_low(row)[block] = largest(low_of(row) + begin, n);
    block_high(row)[block] = largest(high_of(row) + begin, n);
}

// A score never decreases as the logit grows, even with roundings. So the scores of an interval's ends enclose the
// logit's score.
void Screen::change(const Row& row) {
    const DecidingLogits& deciding = row.deciding;
    if (deciding.changes.empty()) return;
    float *low = low_of(row), *high = high_of(row);
    for (const ScoreChange& change : deciding.changes) {
        if (!deciding.allowed.allows(change.token)) continue;
        low[change.token] = changed(low[change.token], change, *deciding.params);
        high[change.token] = changed(high[change.token], change, *deciding.params);
    }
    for (int64_t block = 0; block < blocks(); ++block) block_maxima(row, block);
}

// Returns the count-th largest lower bound: at least `count` scores are not below it.
float Screen::threshold_of(const Row& row) {
    const int64_t top = row.deciding.count, n = blocks();
    const float* most = block_low(row);
    float* values = reinterpret_cast<float*>(values_.data()) + row.slot * shadow_.M;
    const auto nth = [&](int64_t count) {
        if (count < top) return -kInfinity;  // the mask allows fewer
        std::nth_element(values, values + (top - 1), values + count, std::greater<>());
        return values[top - 1];
    };
    // The top-th largest of the blocks' maxima is a lower bound of the result, and few values exceed it.
    float floor = -kInfinity;
    if (top <= n) {
        std::copy_n(most, n, values);
        floor = nth(n);
    }
    const float* low = low_of(row);
    int64_t count = 0;
    for (int64_t block = 0; block < n; ++block) {
        if (most[block] < floor) continue;
        const int64_t begin = block * block_rows_, end = std::min(begin + block_rows_, shadow_.M);
        for (int64_t i = begin; i < end; ++i)
            if (low[i] >= floor) values[count++] = low[i];
    }
    return nth(count);
}

// Lists the row blocks that have a row with an interval up to the threshold or above.
void Screen::choose(Row& r) {
    change(r);
    r.threshold = threshold_of(r) - r.deciding.gap;
    int32_t* found = row_blocks_of(r);
    const float *most = block_high(r), *high = high_of(r);
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
    a.row_blocks = row_blocks_of(r) + first;
    a.jobs = static_cast<int>(std::min<int64_t>(kRescoreJobs, r.row_blocks - first));
    a.y = y;
    kernels_->formats[floats_.format].rescore(a);
    const auto is_candidate = [&](int64_t m) {
        return r.slot < 0 ? r.deciding.allowed.allows(m) : high_of(r)[m] >= r.threshold;
    };
    for (int job = 0; job < a.jobs; ++job)
        for (int i = 0; i < kRowBlock; ++i) {
            const int64_t m = int64_t{a.row_blocks[job]} * kRowBlock + i;
            if (m < shadow_.M && is_candidate(m)) logits.row(row)[m] = y[job * kRowBlock + i];
        }
}

}  // namespace sterna
