// Linear layers of experts: each active expert's tiles, for the rows of the tokens that have chosen it.
#include <algorithm>

#include "program/ops/linear.h"
#include "units/dispatch.h"

namespace sterna {

namespace {

class ExpertLinearOp final : public Op {
  public:
    ExpertLinearOp(const OpFields& f, Workspace& work)
        : Op(f, work),
          expert_rows_(f.whole("expert_rows")),
          experts_(f.value("output").experts),
          product_(f, work, expert_rows_, experts_) {
        const Weight& w = work.weights[product_.weight];
        const int tile_rows = all_tables().front()->formats[w.format].tile_rows;
        f.require(experts_ >= 1 && product_.x.experts == experts_ &&
                      product_.x.chosen == product_.y.chosen,
                  "x", "must have rows of the experts of the output");
        f.require(!selected && !product_.residual, "residual",
                  "must be None, and no row selected, where rows are those of experts");
        f.require(expert_rows_ >= 1 && expert_rows_ <= w.M &&
                      (expert_rows_ + tile_rows - 1) / tile_rows * experts_ == w.tiles,
                  "weight", "must have whole tiles for the rows of each expert");
    }
    const char* kind() const override { return "linear"; }
    // An expert has no more rows than there are tokens.
    int64_t scratch_bytes(const Step& step) const override {
        return product_.scratch_bytes(step, step.tokens);
    }
    std::vector<TilesRead> tiles_read() const override {
        if (on_disk_ >= 0) return {};
        return {{product_.weight, experts_}};
    }
    bool is_linear(const Step&) const override { return true; }
    int stream_from(const WeightCache& cache) override {
        return on_disk_ = cache.matrix_of(work.weights[product_.weight].codes);
    }

    // Tiles of the active experts, one expert after the other; where a node has a part of each, those of a node after
    // one another.
    Division units(const Step& step) const override {
        const Routing& routing = work.routing;
        const int64_t active = std::ssize(routing.active);
        if (on_disk_ >= 0) return {.total = active * pieces(step).count()};
        Division all = divide_tiles(active * tiles(), routing.most * product_.planes, step.threads,
                                    step.reading_of(work.weights[product_.weight]));
        if (step.team && work.weights.near(product_.weight).in_parts()) {
            all.team = step.team;
            all.repeats = active;
        }
        return all;
    }
    void run(Step& step, Turn& turn) override;

  private:
    int64_t tiles() const { return work.weights[product_.weight].tiles / experts_; }
    Pieces pieces(const Step& step) const { return {step, work.weights[product_.weight], tiles()}; }
    void run_streamed(Step& step, Turn& turn) const;
    void multiply(Step& step, Turn& turn, const Weight& own, int expert, int64_t tile,
                  int64_t count) const;

    int64_t expert_rows_;
    int experts_;
    LinearProduct product_;
    int on_disk_ = -1;  // the matrix of the cache that it reads
};

void ExpertLinearOp::run(Step& step, Turn& turn) {
    if (on_disk_ >= 0) return run_streamed(step, turn);
    const auto& w = work.weights[product_.weight];
    const int tile_rows = step.kernels.formats[w.format].tile_rows;
    const Division all = units(step);
    int node = 0;
    for (int64_t begin = turn.begin, count; begin < turn.end; begin += count) {
        // Tiles [low, high) of each active expert are units one expert after the other, from `base` on.
        int64_t base = 0, low = 0, high = tiles();
        if (all.team) {
            while (begin >= all.bound(node + 1)) ++node;
            base = all.bound(node);
            low = all.team->bound(tiles(), node);
            high = all.team->bound(tiles(), node + 1);
        }
        const int64_t of_expert = high - low, i = (begin - base) / of_expert;
        count = std::min(turn.end, base + (i + 1) * of_expert) - begin;
        const int expert = work.routing.active[static_cast<size_t>(i)];
        // Fewer tiles, where a part of the weight ends.
        const int64_t first_tile = expert * tiles(), tile = low + (begin - base) % of_expert;
        int64_t until = first_tile + tile + count;
        const Weight own = product_.near_part(step, turn.worker, first_tile + tile, until)
                               .part(first_tile, tiles(), expert_rows_, tile_rows);
        count = until - first_tile - tile;
        multiply(step, turn, own, expert, tile, count);
    }
}

void ExpertLinearOp::run_streamed(Step& step, Turn& turn) const {
    const auto& w = work.weights[product_.weight];
    const int tile_rows = step.kernels.formats[w.format].tile_rows;
    const Pieces pieces = this->pieces(step);
    WeightCache& cache = *work.weight_cache;
    for (int64_t item = turn.begin; item < turn.end; ++item) {
        const int64_t i = item / pieces.count();
        const int expert = cache.planned(i);
        const WeightCache::Place place = cache.acquire(i);
        Weight own = w.part(expert * tiles(), tiles(), expert_rows_, tile_rows);
        own.codes = place.codes;
        own.groups.data = place.groups;
        const auto [begin, end] = pieces.at(item % pieces.count());
        multiply(step, turn, own, expert, begin, end - begin);
        cache.release(i, static_cast<int>(pieces.count()));
    }
}

void ExpertLinearOp::multiply(Step& step, Turn& turn, const Weight& own, int expert, int64_t tile,
                              int64_t count) const {
    const auto& format = step.kernels.formats[own.format];
    const auto e = static_cast<size_t>(expert);
    const int64_t first = work.routing.first[e];
    LinearArgs a = product_.args(step, own, first, work.routing.count[e]);
    if (product_.fast(format)) a.xh += first * work.buffer(product_.x).ld * format.fast.x_planes;
    a.scratch = work.scratch(turn.worker);
    a.tile_begin = tile;
    a.tile_end = tile + count;
    a.scratch_ready = expert == turn.expert;
    turn.expert = expert;
    a.outputs.bias = product_.bias_of(expert * expert_rows_);
    product_.multiply(step, a, own);
    product_.finish(step, a, a.tile_begin * format.tile_rows,
                    std::min(a.tile_end * format.tile_rows, expert_rows_));
}

const OpKind expert_linear("expert_linear",
                           [](const OpFields& f, Program& p) { p.add<ExpertLinearOp>(f); });

}  // namespace

}  // namespace sterna
