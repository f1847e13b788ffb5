// An indexer (DeepSeek V3.2, arXiv 2512.02556): scores of earlier positions, and the choice of those attended to.
#include <array>
#include <bit>

#include "program/program.h"

namespace sterna {

namespace {

// Scores of the chunks of positions that tokens see, in the units of attention.
class IndexScoresOp final : public Op {
  public:
    IndexScoresOp(const OpFields& f, Workspace& work)
        : Op(f, work),
          x_(f.value("x")),
          weights_(f.value("weights")),
          column_(f.whole("column")),
          plan_(work.attention[static_cast<size_t>(f.required("heads"))]),
          layer_(static_cast<int>(f.whole("layer"))) {
        const AttentionHeads& heads = plan_.heads;
        f.require(heads.n_kv_heads == 1 && heads.n_heads <= kMaxAttentionRows, "heads",
                  "must be at most 256 with one key");
        f.require(int64_t{heads.n_heads} * heads.padded() <= x_.ld() && !x_.chosen, "x",
                  "is too narrow");
        f.require(column_ >= 0 && column_ + heads.n_heads <= weights_.width && !weights_.chosen,
                  "weights", "must have a column for each head");
        const auto& layers = work.needs.layers;
        f.require(layer_ >= 0 && layer_ < std::ssize(layers) &&
                      layers[static_cast<size_t>(layer_)] == heads.cached(),
                  "layer", "must be one whose keys have been stored, with the same heads");
    }
    const char* kind() const override { return "indexer"; }
    int64_t scratch_bytes(const Step& step) const override {
        return step.kernels.attention(step.cache.type).scratch(plan_.heads.padded());
    }
    Division units(const Step& step) const override {
        return {work.index.any() ? std::ssize(plan_.units) : 0, step.threads};
    }
    void run(Step& step, Turn& turn) override {
        const AttentionUnit* before = nullptr;
        for (int64_t i = turn.begin; i < turn.end; ++i) {
            const AttentionUnit& unit = plan_.units[static_cast<size_t>(i)];
            const bool ready = before && before->block == unit.block && before->count == unit.count;
            score(step, unit, ready, turn.worker);
            before = &unit;
        }
    }

  private:
    // Rows of attention are scaled to logarithms to base 2: a float32 whose product with log2 e is 1.
    static constexpr float kUnscaled = 0.6931472f;

    void score(const Step& step, const AttentionUnit& unit, bool queries_ready, int worker) const;

    Operand x_, weights_;
    int64_t column_;
    const AttentionPlan& plan_;
    int layer_;  // of the cache
};

void IndexScoresOp::score(const Step& step, const AttentionUnit& unit, bool queries_ready,
                          int worker) const {
    const std::span blocks(plan_.blocks.data() + unit.block, static_cast<size_t>(unit.count));
    const AttentionHeads& heads = plan_.heads;
    const int H = heads.n_heads;
    const float *q[kMaxAttentionRows], *weights[kMaxAttentionRows];
    float* scores[kMaxAttentionRows];
    int32_t limit[kMaxAttentionRows], next[kMaxAttentionRows];
    AttentionArgs a{};
    int tokens = 0;
    bool any = false;
    for (const QueryBlock& block : blocks)
        for (int64_t n = block.first; n < block.first + block.count; ++n, ++tokens) {
            weights[tokens] = work.buffer(weights_).row(n) + column_;
            scores[tokens] = work.index.of(n);
            any = any || scores[tokens];
            for (int h = 0; h < H; ++h, ++a.rows) {
                q[a.rows] = work.buffer(x_).row(n) + h * heads.padded();
                limit[a.rows] = plan_.limit(step.batch, work.rows, n);
                next[a.rows] = work.rows.position_of[static_cast<size_t>(n)] + 1;
            }
        }
    if (!any) return;
    const int chunks = attention_chunks(limit[a.rows - 1]);
    // Rows of several blocks all see the chunk that is their unit.
    if (unit.count > 1) std::fill_n(limit, a.rows, (unit.chunk + 1) * kChunkPositions);
    a.q = q, a.limit = limit, a.next = next;
    a.head_dim = heads.padded(), a.scale = kUnscaled;
    a.pages = step.batch.sequences[static_cast<size_t>(blocks.front().sequence)].pages;
    a.k_base = a.v_base = step.cache.keys(layer_);
    a.page_stride = step.cache.page_stride(layer_);
    a.type = step.cache.types(layer_), a.next_page = step.readings.next_page;
    a.scratch = work.scratch(worker);
    a.queries_ready = queries_ready;
    const IndexArgs index{H, weights, scores};
    const int begin = std::max(unit.chunk, 0), end = unit.chunk < 0 ? chunks : unit.chunk + 1;
    for (int chunk = begin; chunk < end; ++chunk) {
        step.kernels.attention(a.type).index(a, index, chunk);
        a.queries_ready = true;
    }
}

// The positions of the largest scores, in ascending order. Of equal scores the lowest positions are kept.
class TopKOp final : public RowOp {
  public:
    TopKOp(const OpFields& f, Workspace& work) : RowOp(f, work), output_(f.value("output")) {
        f.require(output_.width <= kMostPositions && !output_.chosen, "output",
                  "must have a column for each position that is kept");
        const auto top_k = static_cast<int32_t>(output_.width);
        f.require(!work.index.top_k || work.index.top_k == top_k, "output",
                  "must be as wide in all layers");
        work.index.top_k = top_k;
        int64_t& positions = work.needs.positions;
        positions = positions ? std::min(positions, kMostPositions) : kMostPositions;
    }
    const char* kind() const override { return "indexer"; }
    Division units(const Step& step) const override {
        return {work.index.any() ? step.tokens : 0, step.threads};
    }

  protected:
    void row(Step& step, int64_t n, int) override {
        const float* const scores = work.index.of(n);
        if (!scores) return;
        const std::span seen(scores,
                             static_cast<size_t>(work.rows.limit_of[static_cast<size_t>(n)]));
        if (!choose(seen, work.index.top_k, work.buffer(output_).row(n))) report(step);
    }

  private:
    static constexpr int64_t kMostPositions = int64_t{1} << 24;  // which floats count exactly

    // A number that ascends with the score.
    static uint32_t order(float score) {
        const auto bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 is 0
        return bits >> 31 ? ~bits : bits | uint32_t{1} << 31;
    }
    static bool choose(std::span<const float> scores, int64_t top_k, float* positions);

    Operand output_;
};

// Finds the top_k-th largest score, its eight highest bits first; false: a score is not finite.
bool TopKOp::choose(std::span<const float> scores, int64_t top_k, float* positions) {
    uint32_t least = 0;  // the bits of its order that are known
    int64_t left = top_k;  // of the scores that have these bits
    bool finite = true;
    for (int shift = 24; shift >= 0; shift -= 8) {
        std::array<int64_t, 256> counts{};
        for (const float score : scores) {
            const uint32_t x = order(score);
            if (shift == 24) finite = finite && std::isfinite(score);
            if (shift == 24 || x >> (shift + 8) == least >> (shift + 8)) ++counts[x >> shift & 255];
        }
        uint32_t digit = 255;
        for (; digit && counts[digit] < left; --digit) left -= counts[digit];
        least |= digit << shift;
    }
    for (size_t i = 0; i < scores.size(); ++i) {
        const uint32_t x = order(scores[i]);
        if (x > least || (x == least && left-- > 0)) *positions++ = static_cast<float>(i);
    }
    return finite;
}

const OpKind indexer("indexer", [](const OpFields& f, Program& p) {
    p.add<IndexScoresOp>(f);
    p.add<TopKOp>(f);
});

}  // namespace

}  // namespace sterna
