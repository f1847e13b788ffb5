// What the adapters of a step's sequences add to linear layers (adapter.h).
#include "program/adapter.h"
#include "program/program_run.h"

namespace sterna {

namespace {

int64_t token_chunks(int64_t tokens) { return (tokens + kAdapterTokens - 1) / kAdapterTokens; }

}  // namespace

void Program::add_adapted(const std::string& name, int src, int dst) {
    Op op{OpKind::kAdapt, name};
    op.src = src;
    op.dst = dst;
    op.place = places_of_adapters_++;
    ops_.push_back(op);
    op.adds = true;
    ops_.push_back(std::move(op));
}

// The rows of sequences that follow each other and have one adapter.
void Program::plan_adapters(const Batch& batch) {
    adapting_.clear();
    adapter_sums_ = adapter_rank_ = 0;
    for (const AdapterSpan& span : batch.adapters) {
        const auto last = static_cast<size_t>(span.first + span.count - 1);
        const int64_t first = first_of_[static_cast<size_t>(span.first)];
        const int64_t end = first_of_[last] + batch.sequences[last].count;
        adapting_.push_back({span.adapter, first, end - first});
        adapter_sums_ = std::max(adapter_sums_, span.adapter->sums());
        adapter_rank_ = std::max(adapter_rank_, span.adapter->rank());
    }
    const auto bytes = static_cast<size_t>(adapter_sums_ * std::ssize(batch.tokens) * 4);
    if (sums_of_adapters_.size() < bytes) sums_of_adapters_ = HugeBuffer(bytes);
}

int64_t Program::adapter_units(const Op& op) const {
    int64_t units = 0;
    for (const Adapting& a : adapting_)
        if (const AdapterLayers* layers = a.adapter->at(op.place))
            units += token_chunks(a.rows) * (op.adds ? layers->up_units() : layers->down_units());
    return units;
}

// Unit `unit`: of an adapter's rows up to kAdapterTokens, and of its matrices a tile's chunk, or rows of one B.
void Program::adapt(const Op& op, const Run& run, int64_t unit, int worker) const {
    for (const Adapting& a : adapting_) {
        const AdapterLayers* layers = a.adapter->at(op.place);
        if (!layers) continue;
        const int64_t each = op.adds ? layers->up_units() : layers->down_units();
        const int64_t units = token_chunks(a.rows) * each;
        if (unit >= units) {
            unit -= units;
            continue;
        }
        const int64_t from = unit / each * kAdapterTokens, first = a.first + from;
        const int64_t tokens = std::min(kAdapterTokens, a.rows - from);
        if (op.adds)
            add_up(op, run, *layers, unit % each, first, tokens, worker);
        else
            sum_down(op, run, *layers, unit % each, first, tokens);
        return;
    }
}

void Program::sum_down(const Op& op, const Run& run, const AdapterLayers& layers, int64_t unit,
                       int64_t first, int64_t tokens) const {
    const auto& x = buffers_[static_cast<size_t>(op.src)];
    const int64_t blocks = row_blocks(layers.down.rows);
    const int64_t block = unit % blocks, k = unit / blocks * kAdapterK;
    float* out = adapter_sums(first) + (unit / blocks * blocks + block) * kRowBlock;
    run.kernels.low_rank({layers.down.tile(block) + k * kRowBlock, kRowBlock,
                          std::min(kAdapterK, layers.down.columns - k), x.row(first) + k, x.ld,
                          tokens, out, adapter_sums_, false, 1.0f});
}

void Program::add_up(const Op& op, const Run& run, const AdapterLayers& layers, int64_t unit,
                     int64_t first, int64_t tokens, int worker) const {
    auto up = layers.ups.begin();
    for (; unit >= up->units(); ++up) unit -= up->units();
    const auto& y = buffers_[static_cast<size_t>(op.dst)];
    const int64_t rank = up->matrix.columns, stride = row_blocks(layers.down.rows) * kRowBlock;
    float* const low = reinterpret_cast<float*>(scratch(worker));  // A x, [tokens][rank]
    for (int64_t n = 0; n < tokens; ++n) {
        const float* sums = adapter_sums(first + n) + up->first;
        std::copy_n(sums, rank, low + n * rank);
        for (int64_t c = 1; c < layers.chunks(); ++c)
            for (int64_t j = 0; j < rank; ++j) low[n * rank + j] += sums[c * stride + j];
    }
    const int64_t m = unit * kAdapterRows;
    run.kernels.low_rank({up->matrix.tile(m / kRowBlock),
                          std::min(kAdapterRows, up->matrix.rows - m), rank, low, rank, tokens,
                          y.row(first) + up->column + m, y.ld, true, up->scale});
}

}  // namespace sterna
