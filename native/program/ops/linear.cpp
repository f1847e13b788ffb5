// Linear layers of all tokens: a worker's tiles, of one plane of codes or two, what is done to their results, and what a
// step of one token leaves out.
#include "program/ops/linear.h"

#include <algorithm>

#include "units/dispatch.h"

namespace sterna {

namespace {

// A waiting thread prefetches at most this much of the next weight: a part of the core's private cache.
constexpr int64_t kReadAheadBytes = int64_t{192} << 10;

// With two planes of codes, the most tokens that are multiplied together, and about how many bytes of their sums a
// thread keeps before it adds up those of a token: both are read again from L2.
constexpr int64_t kPairTokens = 256, kPairBytes = int64_t{256} << 10;

// Bytes of the sums of both planes: those of a tile at least.
constexpr int64_t pair_bytes(int64_t tokens, int64_t tile_rows) {
    return std::max(kPairBytes, 2 * std::min(tokens, kPairTokens) * tile_rows * 4);
}

// y = (high + low) (+ residual) (+ bias) of token n and `count` rows from `from` on: linear/output.h for two planes.
void add_pair(const float* high, const float* low, const LinearOutputs& out, int64_t n,
              int64_t from, int64_t count) {
    const auto [to, ld, residual, bias] = out;
    const int64_t at = n * ld + from;
    float* const y = to + at;
    if (residual) {
        for (int64_t i = 0; i < count; ++i) y[i] = residual[at + i] + (high[i] + low[i]);
    } else {
        for (int64_t i = 0; i < count; ++i) y[i] = high[i] + low[i];
    }
    if (bias)
        for (int64_t i = 0; i < count; ++i) y[i] += bias[from + i];
}

}  // namespace

LinearProduct::LinearProduct(const OpFields& f, const Workspace& work, int64_t rows,
                             int64_t experts)
    : work(work),
      x(f.value("x")),
      residual(f.value("residual")),
      y(f.value("output")),
      weight(f.required("weight")),
      planes(1),
      column(f.whole("column")),
      bias(f.floats("bias", rows * experts, "must have a value for each row")),
      factor(f.factor("factor")),
      cap(f.cap("cap")) {
    if (!bias.empty()) bias.resize(bias.size() + kRowBlock);  // kernels read whole row blocks
    const Weight& w = work.weights[weight];
    if (all_tables().front()->formats[w.format].integer) planes = x.code_planes;
    // Whole row blocks are written, aligned: with widths padded to kPad they fit.
    f.require(column >= 0 && column % kRowBlock == 0 && rows <= y.ld() - column, "column",
              "must be a multiple of 16 with room for the rows of the weight");
    f.require(w.padded_k <= x.ld(), "x", "is too narrow for the weight");
    f.require(x.planes_for < 0 || work.weights[x.planes_for].format == w.format, "x",
              "has bf16 planes for another format");
    f.require(!residual || residual.ld() == y.ld(), "residual",
              "must have the width of the output");
    f.require(factor == 1 || !residual || residual.buffer != y.buffer, "residual",
              "must have a buffer of its own where there is a factor");
}

LinearArgs LinearProduct::args(const Step& step, const Weight& w, int64_t first,
                               int64_t rows) const {
    LinearArgs a = linear_args(w, work.buffer(x), static_cast<int>(rows), x_block(step, rows),
                               work.buffer(y), first, planes);
    a.outputs.y += column;
    a.reading = step.reading_of(w);
    return a;
}

int64_t LinearProduct::scratch_bytes(const Step& step, int64_t tokens) const {
    const auto& w = work.weights[weight];
    const auto& format = step.kernels.formats[w.format];
    const auto scratch = fast(format) ? format.fast.scratch_bytes : format.scratch_bytes;
    const bool two = planes == 2;
    const auto rows = static_cast<int>(two ? 2 * std::min(tokens, kPairTokens) : tokens);
    // An expert may get only a few of the tokens, whose kernel may need more scratch.
    int64_t bytes = std::max(scratch(w.padded_k, rows),
                             y.chosen ? scratch(w.padded_k, std::min(rows, kFewTokens)) : 0);
    return bytes + (two ? pair_bytes(tokens, format.tile_rows) : 0);
}

void LinearProduct::multiply(const Step& step, const LinearArgs& a, const Weight& w) const {
    const auto& format = step.kernels.formats[w.format];
    const auto kernel = fast(format) ? format.fast.linear : format.linear;
    if (planes == 1) return kernel(a);
    // Equal blocks of tokens, multiples of 8 (the matrix unit's block), so that no short block is left.
    const int64_t blocks = (a.n + kPairTokens - 1) / kPairTokens;
    const int64_t size = ((a.n + blocks - 1) / blocks + 7) / 8 * 8;
    const int64_t tile_rows = format.tile_rows;
    const int64_t x_groups = w.x_group_k() ? a.ldx / w.x_group_k() : 1;
    const int64_t x_sums = w.x_group_k() ? a.ldx / kSumK : 1;
    auto* const sums = reinterpret_cast<float*>(a.scratch);
    LinearArgs pair = a;
    pair.outputs = {sums};
    pair.scratch = a.scratch + pair_bytes(a.n, tile_rows);
    pair.scratch_ready = a.scratch_ready && blocks == 1;
    for (int64_t n0 = 0; n0 < a.n; n0 += size, pair.scratch_ready = false) {
        const int64_t tokens = std::min(size, a.n - n0);
        const int64_t most = std::max<int64_t>(1, kPairBytes / (2 * tokens * tile_rows * 4));
        pair.n = static_cast<int>(2 * tokens);
        pair.xq = a.xq + 2 * n0 * a.ldx;
        pair.x_scale = a.x_scale + 2 * n0 * x_groups;
        pair.x_sum = a.x_sum + 2 * n0 * x_sums;
        for (int64_t tile = a.tile_begin, count; tile < a.tile_end; tile += count) {
            count = std::min(most, a.tile_end - tile);
            const int64_t from = tile * tile_rows;
            const int64_t rows = std::min(count * tile_rows, a.M - from);
            pair.codes = a.codes + tile * a.tile_bytes;
            pair.scale = a.scale ? a.scale + from : nullptr;
            if (a.groups.data)
                pair.groups.data = a.groups.data + tile * a.groups.tile_bytes(a.K, tile_rows);
            pair.M = rows;
            pair.outputs.ld = count * tile_rows;
            pair.tile_begin = 0;
            pair.tile_end = count;
            kernel(pair);
            pair.scratch_ready = true;
            const int64_t written = (rows + kRowBlock - 1) / kRowBlock * kRowBlock;
            for (int64_t n = 0; n < tokens; ++n) {
                const float* const high = sums + 2 * n * pair.outputs.ld;
                add_pair(high, high + pair.outputs.ld, a.outputs, n0 + n, from, written);
            }
        }
    }
}

// y * factor (+ residual), capped: here and not in the kernels, with one rounding each that is the same in all of them, on
// tiles that this thread has just written.
void LinearProduct::finish(const Step& step, const LinearArgs& a, int64_t from, int64_t to) const {
    if (factor == 1 && cap == 0) return;
    for (int64_t n = 0; n < a.n; ++n) {
        float* y = a.outputs.y + n * a.outputs.ld;
        if (factor != 1)
            for (int64_t m = from; m < to; ++m) y[m] *= factor;
        if (factor != 1 && residual) {
            const float* x = work.buffer(residual).row(n) + column;
            for (int64_t m = from; m < to; ++m) y[m] += x[m];
        }
        if (cap > 0) step.kernels.cap({y + from, to - from, cap});
    }
}

Weight LinearProduct::near_part(const Step& step, int worker, int64_t begin, int64_t& end) const {
    const auto& w = work.weights[weight];
    const auto& tiles = work.weights.near(weight);
    if (tiles.empty()) return w;
    return tiles.at(w, step.kernels.formats[w.format].tile_rows, begin, step.node_of(worker), end);
}

LinearOp::LinearOp(const OpFields& f, Workspace& work, Active active,
                   std::shared_ptr<const ActiveCopy> copy)
    : Op(f, work),
      product_(f, work, work.weights[f.required("weight")].M, 1),
      active_(active),
      copy_(std::move(copy)) {
    f.require(!product_.x.chosen && !product_.y.chosen, "x", "has rows of experts");
    if (active == Active::kAll) return;
    f.require(product_.bias.empty() && !selected && product_.factor == 1 && product_.cap == 0 &&
                  product_.planes == 1,
              "weight", "is read in parts only without bias, factor, cap or a second plane");
    if (active == Active::kColumns)
        work.nonzeros.reserve(weight().padded_k);
    else
        f.require(!product_.residual && product_.column == 0, "residual",
                  "must be None, and column 0, where open rows are read alone");
}

int64_t LinearOp::scratch_bytes(const Step& step) const {
    const auto n = static_cast<int>(rows(step));
    const auto& format = step.kernels.formats[weight().format];
    int64_t bytes = product_.scratch_bytes(step, n);
    if (is_joint(format, joint_tokens(), n)) bytes = std::max(bytes, format.joint_scratch(n));
    if (!copy_ || !step.one()) return bytes;
    return std::max(bytes, active_scratch(weight().padded_k, weight().M));
}

int LinearOp::stream_from(const WeightCache& cache) {
    if (active_ == Active::kAll) on_disk_ = cache.matrix_of(weight().codes);
    return on_disk_;
}

Division LinearOp::units(const Step& step) const {
    if (!takes_part(step)) return {0};
    if (on_disk_ >= 0) return {work.weight_cache->parts_of(on_disk_) * pieces(step).count()};
    if (const int64_t count = parts(step)) return {count};
    int64_t tiles = weight().tiles;
    if (step.one() && active_ == Active::kGates) tiles = copy_->first_tile;
    const auto& format = step.kernels.formats[weight().format];
    Division all =
        divide_tiles(tiles, rows(step) * product_.planes, step.threads, step.reading_of(weight()),
                     least_tiles(format, joint_tokens(), rows(step)));
    if (work.weights.near(product_.weight).in_parts()) all.team = step.team;
    return all;
}

// The memory that can be prefetched before the layer's input is ready: its first tiles, unless it reads only open rows
// or active columns.
ReadAhead LinearOp::beginning(const Step& step, int worker) const {
    if (step.tokens > kFewTokens || active_ == Active::kRows || active_ == Active::kColumns ||
        on_disk_ >= 0)
        return {};
    const auto& w = weight();
    const Division tiles = units(step);
    const int64_t first = tiles.first(worker);
    int64_t end = tiles.end(worker);
    if (first == end) return {};
    const uint8_t* begin =
        product_.near_part(step, worker, first, end).codes + first * w.tile_bytes;
    return {begin, begin + std::min((end - first) * w.tile_bytes, kReadAheadBytes)};
}

void LinearOp::run(Step& step, Turn& turn) {
    const auto& w = weight();
    int64_t begin = turn.begin, end = turn.end;
    LinearArgs a = product_.args(step, w, 0, rows(step));
    // Kernels add the residual to their sum. A factor comes before that, so with one `finish` adds the residual.
    if (product_.residual && product_.factor == 1)
        a.outputs.residual = work.buffer(product_.residual).row(0) + product_.column;
    a.outputs.bias = product_.bias_of(0);
    a.joint_tokens = joint_tokens();
    a.scratch = work.scratch(turn.worker);
    if (on_disk_ >= 0) return run_streamed(step, turn, a);
    if (parts(step) && run_part(step, a, begin, begin, end)) return;
    a.scratch_ready = turn.again;
    const auto& format = step.kernels.formats[w.format];
    for (a.tile_end = begin; a.tile_end < end; a.scratch_ready = true) {
        a.tile_begin = a.tile_end;
        a.tile_end = end;
        const Weight near = product_.near_part(step, turn.worker, a.tile_begin, a.tile_end);
        a.codes = near.codes;
        a.groups = near.groups;
        product_.multiply(step, a, w);
    }
    product_.finish(step, a, begin * format.tile_rows, std::min(end * format.tile_rows, w.M));
}

Pieces LinearOp::pieces(const Step& step) const {
    return {step, weight(), weight().tiles / work.weight_cache->parts_of(on_disk_)};
}

// Tiles keep their numbers in the matrix, which is moved to where this part of it lies.
void LinearOp::run_streamed(Step& step, Turn& turn, LinearArgs& a) const {
    const auto& w = weight();
    const int64_t tile_rows = step.kernels.formats[w.format].tile_rows;
    const Pieces pieces = this->pieces(step);
    WeightCache& cache = *work.weight_cache;
    for (int64_t item = turn.begin; item < turn.end; ++item) {
        const int64_t i = item / pieces.count(), base = cache.planned(i) * pieces.tiles;
        const WeightCache::Place place = cache.acquire(i);
        a.codes = moved_by(place.codes, -base * w.tile_bytes);
        if (place.groups)
            a.groups.data = moved_by(place.groups, -base * a.groups.tile_bytes(a.K, tile_rows));
        const auto [begin, end] = pieces.at(item % pieces.count());
        a.tile_begin = base + begin;
        a.tile_end = base + end;
        product_.multiply(step, a, w);
        product_.finish(step, a, a.tile_begin * tile_rows, std::min(a.tile_end * tile_rows, w.M));
        cache.release(i, static_cast<int>(pieces.count()));
    }
}

// How many parts there are if only some rows or columns are read: at most one per thread, since a part's first lines
// cannot be prefetched. 0: all tiles are read.
int64_t LinearOp::parts(const Step& step) const {
    if (!copy_ || active_ == Active::kGates || !step.one()) return 0;
    const auto& w = weight();
    if (active_ == Active::kRows) return std::min<int64_t>(step.threads, w.tiles / 2);
    if (mostly_active(work.nonzeros.count, w.K)) return 0;
    return std::min<int64_t>(step.threads, active_stride(w.M) / 64);
}

// False: the part is better read as tiles [begin, end), and is not done.
bool LinearOp::run_part(Step& step, const LinearArgs& a, int64_t part, int64_t& begin,
                        int64_t& end) const {
    const auto& w = weight();
    const ActiveCopy& copy = *copy_;
    const int64_t count = parts(step);
    const auto share = [&](int64_t all, int64_t i) { return all * i / count; };
    int64_t read, tiles;
    if (active_ == Active::kColumns) {
        const int64_t lines = copy.stride / 64, from = share(lines, part),
                      to = share(lines, part + 1);
        step.kernels.linear_columns(a, work.nonzeros.columns(copy), from, to);
        read = work.nonzeros.count * (to - from) * 64;
        tiles = share(w.tiles, part + 1) - share(w.tiles, part);
    } else {
        const int64_t tile_rows = step.kernels.formats[w.format].tile_rows;
        begin = copy.first_tile + share(w.tiles - copy.first_tile, part);
        end = copy.first_tile + share(w.tiles - copy.first_tile, part + 1);
        const ActiveRows rows{copy.data.data(), copy.stride, a.outputs.y, a.scale + copy.first_row,
                              a.outputs.y + copy.first_row};
        const int64_t from = begin * tile_rows - copy.first_row,
                      to = std::min(end * tile_rows, w.M) - copy.first_row;
        const int64_t open = step.kernels.linear_open_rows(a, rows, from, to);
        if (open < 0) return false;
        read = open * copy.stride;
        tiles = end - begin;
    }
    step.left_out += tiles * w.tile_bytes - read;
    return true;
}

namespace {

// A layer whose first `gates` rows are gates: the rows after them are a second operation, which in a step of one token
// reads open rows only.
void add_gates(const OpFields& f, Program& p, int64_t gates) {
    Workspace& work = p.work();
    const auto& kernels = *runnable_tables().back();
    const Weight& w = work.weights[f.required("weight")];
    f.require(work.pool && ActiveCopy::possible(w, kernels), "open_rows",
              "needs threads, two-bit codes, and a scale for each row");
    f.require(gates > 0 && gates % kernels.formats[w.format].tile_rows == 0 && w.M == 2 * gates,
              "open_rows", "must be the first half of the rows, whole tiles");
    const auto copy =
        std::make_shared<const ActiveCopy>(ActiveCopy::of(w, false, gates, kernels, *work.pool));
    p.add(std::make_unique<LinearOp>(f, work, LinearOp::Active::kGates, copy));
    p.add(std::make_unique<LinearOp>(f, work, LinearOp::Active::kRows, copy));
}

void add_columns(const OpFields& f, Program& p) {
    Workspace& work = p.work();
    const auto& kernels = *runnable_tables().back();
    const Weight& w = work.weights[f.required("weight")];
    f.require(work.pool && ActiveCopy::possible(w, kernels), "active_columns",
              "needs threads, two-bit codes, and a scale for each row");
    f.require(f.value("x").nonzeros, "x", "must list its places that are not 0");
    const auto copy =
        std::make_shared<const ActiveCopy>(ActiveCopy::of(w, true, 0, kernels, *work.pool));
    p.add(std::make_unique<LinearOp>(f, work, LinearOp::Active::kColumns, copy));
}

const OpKind linear("linear", [](const OpFields& f, Program& p) {
    const int64_t gates = f.whole("open_rows");
    if (gates) return add_gates(f, p, gates);
    if (f.flag("active_columns")) return add_columns(f, p);
    p.add<LinearOp>(f);
});

}  // namespace

}  // namespace sterna
