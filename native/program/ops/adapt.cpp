// Adds the LoRA adapters of a step's sequences to the results of linear layers (adapter.h): A x, then B (A x).
#include <algorithm>

#include "program/program.h"

namespace sterna {

namespace {

int64_t token_chunks(int64_t tokens) { return (tokens + kAdapterTokens - 1) / kAdapterTokens; }

// The units of one of both products, for each adapter of the step: up to kAdapterTokens of its rows, and of its
// matrices a tile's chunk, or rows of one B.
class AdaptOp : public Op {
  public:
    AdaptOp(const OpFields& f, Workspace& work, int place)
        : Op(f, work), x_(f.value("x")), y_(f.value("output")), place_(place) {
        f.require(!x_.chosen && !y_.chosen, "x", "must have rows of tokens");
    }
    const char* kind() const override { return "adapt"; }
    Division units(const Step& step) const override {
        int64_t units = 0;
        for (const auto& rows : work.adapters.rows())
            if (const AdapterLayers* layers = rows.adapter->at(place_))
                units += token_chunks(rows.count) * units_of(*layers);
        return {units, step.threads};
    }
    void run(Step& step, Turn& turn) override {
        for (int64_t unit = turn.begin; unit < turn.end; ++unit) adapt(step, unit, turn.worker);
    }

  protected:
    virtual int64_t units_of(const AdapterLayers& layers) const = 0;
    virtual void product(const Step& step, const AdapterLayers& layers, int64_t unit, int64_t first,
                         int64_t tokens, int worker) const = 0;

    Operand x_, y_;

  private:
    void adapt(const Step& step, int64_t unit, int worker) const {
        for (const auto& rows : work.adapters.rows()) {
            const AdapterLayers* layers = rows.adapter->at(place_);
            if (!layers) continue;
            const int64_t each = units_of(*layers), units = token_chunks(rows.count) * each;
            if (unit >= units) {
                unit -= units;
                continue;
            }
            const int64_t from = unit / each * kAdapterTokens;
            const int64_t tokens = std::min(kAdapterTokens, rows.count - from);
            return product(step, *layers, unit % each, rows.first + from, tokens, worker);
        }
    }

    int place_;  // of the layers in an Adapter
};

class AdaptDownOp final : public AdaptOp {
    using AdaptOp::AdaptOp;

    int64_t units_of(const AdapterLayers& layers) const override { return layers.down_units(); }
    void product(const Step& step, const AdapterLayers& layers, int64_t unit, int64_t first,
                 int64_t tokens, int) const override {
        const auto& x = work.buffer(x_);
        const int64_t blocks = row_blocks(layers.down.rows);
        const int64_t block = unit % blocks, k = unit / blocks * kAdapterK;
        float* out = work.adapters.sums(first) + (unit / blocks * blocks + block) * kRowBlock;
        step.kernels.low_rank({layers.down.tile(block) + k * kRowBlock, kRowBlock,
                               std::min(kAdapterK, layers.down.columns - k), x.row(first) + k, x.ld,
                               tokens, out, work.adapters.sums_stride(), false, 1.0f});
    }
};

class AdaptUpOp final : public AdaptOp {
    using AdaptOp::AdaptOp;

    int64_t scratch_bytes(const Step&) const override {
        return work.adapters.rank() * kAdapterTokens * 4;
    }
    int64_t units_of(const AdapterLayers& layers) const override { return layers.up_units(); }
    void product(const Step& step, const AdapterLayers& layers, int64_t unit, int64_t first,
                 int64_t tokens, int worker) const override {
        auto up = layers.ups.begin();
        for (; unit >= up->units(); ++up) unit -= up->units();
        const auto& y = work.buffer(y_);
        const int64_t rank = up->matrix.columns;
        const int64_t stride = row_blocks(layers.down.rows) * kRowBlock;
        float* const low = reinterpret_cast<float*>(work.scratch(worker));  // A x, [tokens][rank]
        for (int64_t n = 0; n < tokens; ++n) {
            const float* sums = work.adapters.sums(first + n) + up->first;
            std::copy_n(sums, rank, low + n * rank);
            for (int64_t c = 1; c < layers.chunks(); ++c)
                for (int64_t j = 0; j < rank; ++j) low[n * rank + j] += sums[c * stride + j];
        }
        const int64_t m = unit * kAdapterRows;
        step.kernels.low_rank({up->matrix.tile(m / kRowBlock),
                               std::min(kAdapterRows, up->matrix.rows - m), rank, low, rank, tokens,
                               y.row(first) + up->column + m, y.ld, true, up->scale});
    }
};

const OpKind adapt("adapt", [](const OpFields& f, Program& p) {
    auto& places = p.work().needs.adapted;
    const auto place = static_cast<int>(places.size());
    places.emplace_back(f.value("x").width, f.value("output").width);
    p.add(std::make_unique<AdaptDownOp>(f, p.work(), place));
    p.add(std::make_unique<AdaptUpOp>(f, p.work(), place));
});

}  // namespace

}  // namespace sterna
