// Attention of the query rows of a step, in units of blocks or of chunks of positions (attention_plan.h).
#include <algorithm>
#include <limits>
#include <numeric>

#include "program/program.h"

namespace sterna {

namespace {

class AttentionOp final : public Op {
  public:
    AttentionOp(const OpFields& f, Workspace& work)
        : Op(f, work),
          qkv_(f.value("x")),
          output_(f.value("output")),
          chosen_(f.value("chosen")),
          plan_(work.attention[static_cast<size_t>(f.required("heads"))]),
          layer_(static_cast<int>(f.whole("layer"))),
          cap_(f.cap("attention.cap")),
          sinks_(f.floats("attention.sinks", plan_.heads.n_heads,
                          "must have a value for each query head")),
          slopes_(f.floats("attention.slopes", plan_.heads.n_heads,
                           "must have a value for each query head")) {
        const auto window = f.maybe_whole("attention.window");
        f.require(!window || (*window >= 1 && *window <= std::numeric_limits<int32_t>::max()),
                  "attention.window", "must be at least 1");
        if (window) window_ = static_cast<int32_t>(*window);
        const bool bidirectional = f.flag("attention.bidirectional");
        f.require(plan_.bidirectional.value_or(bidirectional) == bidirectional,
                  "attention.bidirectional", "must be the same in all layers of these heads");
        plan_.bidirectional = bidirectional;
        const bool causal = f.flag("attention.causal");
        f.require(plan_.causal.value_or(causal) == causal, "attention.causal",
                  "must be the same in all layers of these heads");
        f.require(!causal || !bidirectional, "attention.causal", "must not be bidirectional");
        plan_.causal = causal;
        set_chosen(f);
        const AttentionHeads& heads = plan_.heads;
        scale_ = f.maybe_number("attention.scale")
                     ? f.factor("attention.scale")
                     : 1.0f / __builtin_sqrtf(static_cast<float>(heads.head_dim));
        // The logits of sinks as logarithms to base 2, within what float32 holds.
        constexpr float kMost = std::numeric_limits<float>::max(), kLog2E = 1.44269504f;
        for (float& sink : sinks_) {
            f.require(std::isfinite(sink), "attention.sinks", "must be finite");
            sink = std::clamp(sink * kLog2E, -kMost, kMost);
        }
        // A slope times any distance is finite.
        constexpr float kMostSlope = 65536.0f;
        for (float& slope : slopes_) {
            f.require(slope >= 0.0f && slope <= kMostSlope, "attention.slopes",
                      "must be from 0 to 65536");
            slope *= kLog2E;
        }
        f.require(int64_t{heads.n_heads} * heads.padded() <= qkv_.ld(), "x", "is too narrow");
        f.require(int64_t{heads.n_heads} * heads.outputs() <= output_.ld(), "output",
                  "is too narrow");
        const auto& layers = work.needs.layers;
        f.require(layer_ >= 0 && layer_ < std::ssize(layers) &&
                      layers[static_cast<size_t>(layer_)] == heads.cached(),
                  "layer", "must be one whose keys have been stored, with the same heads");
    }
    const char* kind() const override { return "attention"; }
    int64_t scratch_bytes(const Step& step) const override {
        const AttentionHeads& heads = plan_.heads;
        const int64_t needed = step.kernels.attention(step.cache.type).scratch(heads.padded());
        if (heads.padded() == heads.outputs() && !heads.value_dim) return needed;
        // and outputs that a Call takes a part of, and keys as values
        return whole_lines(needed) + int64_t{kMaxAttentionRows} * heads.padded() * 4 +
               turned_bytes(step) + gathered_bytes(step);
    }
    // Chunks go out in parts: a thread reads chunks that follow each other, of the same queries. Whole blocks go out one
    // by one, the longest first.
    Division units(const Step& step) const override {
        return {std::ssize(plan_.units), plan_.chunks_only ? step.threads : 0};
    }
    void run(Step& step, Turn& turn) override {
        const AttentionUnit* before = nullptr;
        for (int64_t i = turn.begin; i < turn.end; ++i) {
            const AttentionUnit& unit = plan_.units[static_cast<size_t>(i)];
            const AttentionUnit* after = i + 1 < turn.end ? &unit + 1 : nullptr;
            attend(step, unit, before, after, turn.worker);
            before = &unit;
        }
    }

  private:
    struct Call;

    static int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }
    int64_t turned_bytes(const Step& step) const {
        constexpr int64_t kPages = kChunkPositions / kPagePositions;
        const AttentionHeads& heads = plan_.heads;
        return heads.value_dim ? kPages * kv_head_bytes(step.cache.type.keys, heads.padded()) : 0;
    }
    // Of the keys that a token has chosen.
    int64_t gathered_bytes(const Step& step) const {
        return std::ssize(gathered_pages_) *
               kv_head_bytes(step.cache.type.keys, plan_.heads.padded());
    }
    void set_chosen(const OpFields& f);
    void attend(const Step& step, const AttentionUnit& unit, const AttentionUnit* before,
                const AttentionUnit* after, int worker);
    KeyPages first_keys(const Step& step, const AttentionUnit& unit) const;

    Operand qkv_, output_;
    Operand
        chosen_;  // positions that an indexer has chosen for each token that sees more than these
    std::vector<int32_t> gathered_pages_{};  // the page table of as many keys: 0, 1, 2 ...
    AttentionPlan& plan_;
    int layer_;  // of the cache
    int32_t window_ = kNoWindow;
    float scale_, cap_;
    std::vector<float> sinks_, slopes_;  // of each query head, or empty
};

// Query rows of one KV head on their way to a kernel.
struct AttentionOp::Call {
    Call(const AttentionOp& op, const Step& step, uint8_t* scratch)
        : heads(op.plan_.heads),
          layer(op.layer_),
          sinks_of_heads(op.sinks_),
          slopes_of_heads(op.slopes_),
          step(step),
          kernels(step.kernels.attention(step.cache.type)),
          src(op.work.buffer(op.qkv_)),
          dst(op.work.buffer(op.output_)),
          rows(op.work.rows),
          plan(op.plan_) {
        a.q = q;
        a.out = out;
        a.limit = limit;
        a.next = next;
        a.head_dim = heads.padded();
        a.window = op.window_;
        a.scale = op.scale_;
        a.cap = op.cap_;
        a.sinks = op.sinks_.empty() ? nullptr : sinks;
        a.slopes = op.slopes_.empty() ? nullptr : slopes;
        a.type = step.cache.types(layer);
        a.next_page = step.readings.next_page;
        a.scratch = scratch;
        uint8_t* const own = scratch + whole_lines(kernels.scratch(a.head_dim));
        padded_out = reinterpret_cast<float*>(own);
        if (heads.value_dim) a.turned = own + int64_t{kMaxAttentionRows} * a.head_dim * 4;
        if (op.chosen_) {
            gathered = a.turned + op.turned_bytes(step);
            gathered_pages = op.gathered_pages_.data();
            chosen = &op.work.buffer(op.chosen_);
        }
    }

    // Copies the keys that the block's token has chosen, of a chunk or of all, if it does not see all positions.
    void gather(const QueryBlock& block, int chunk) {
        if (!plan.chooses(step.batch, rows, block.first)) return;
        const int all = plan.limit(step.batch, rows, block.first);
        const int begin = std::max(chunk, 0) * kChunkPositions;
        const int end = chunk < 0 ? all : std::min(all, begin + kChunkPositions);
        step.kernels.gather_keys(
            {keys(block), pages(block), step.cache.page_stride(layer),
             chosen->row(block.first) + begin, end - begin, a.head_dim, a.type.keys,
             gathered + begin / kPagePositions * step.cache.key_head_bytes(layer)});
    }

    // Rows of a block: the pages are those of the first one in a call.
    void add(const QueryBlock& block, float* partials) {
        if (!a.rows) {
            const bool chooses = plan.chooses(step.batch, rows, block.first);
            a.pages = chooses ? gathered_pages : pages(block);
            a.k_base = chooses ? gathered : keys(block);
            a.page_stride =
                chooses ? step.cache.key_head_bytes(layer) : step.cache.page_stride(layer);
            a.v_base = step.cache.values(layer, block.kv_head);
            a.partial = partials + block.partial;
            a.partial_stride = block.stride;
        }
        const int queries_per_kv = heads.queries_per_kv();
        for (int t = 0; t < block.count; ++t) {
            const int64_t n = block.first + t;
            for (int h = 0; h < queries_per_kv; ++h) {
                const int head = block.kv_head * queries_per_kv + h;
                if (a.rows == kMaxRows) all();  // a block wider than the arrays is done in pieces
                q[a.rows] = src.row(n) + head * a.head_dim;
                // Rows are far apart, and may lie in another core's caches.
                for (int d = 0; d < a.head_dim; d += 16) __builtin_prefetch(q[a.rows] + d);
                to[a.rows] = dst.row(n) + head * heads.outputs();
                out[a.rows] =
                    a.head_dim == heads.outputs() ? to[a.rows] : padded_out + a.rows * a.head_dim;
                limit[a.rows] = plan.limit(step.batch, rows, n, a.window);
                next[a.rows] =
                    std::min(rows.position_of[static_cast<size_t>(n)] + 1, limit[a.rows]);
                if (a.sinks) sinks[a.rows] = sinks_of_heads[static_cast<size_t>(head)];
                if (a.slopes) slopes[a.rows] = slopes_of_heads[static_cast<size_t>(head)];
                ++a.rows;
            }
        }
    }
    // Outputs over all positions.
    void all() {
        kernels.all(a);
        take_outputs();
    }
    void merge() {
        step.kernels.attention_merge(a);
        take_outputs();
    }
    void reads_next(const KeyPages& keys, bool cold) { a.after = keys, a.cold = cold; }
    // Results over a chunk of positions, all of which rows of several blocks see. queries_ready: this worker's last call
    // was one for another chunk of the same rows.
    void chunk(int index, bool of_several, bool queries_ready) {
        a.queries_ready = queries_ready;
        if (of_several) std::fill_n(limit, a.rows, (index + 1) * kChunkPositions);
        // Chunks are those of a layer without a window: of others some lie outside.
        const bool seen =
            index >= first_attention_chunk(a) && index < attention_chunks(a.limit[a.rows - 1]);
        if (seen) kernels.chunk(a, index);
        a.rows = 0;
    }

  private:
    static constexpr int kMaxRows = kMaxAttentionRows;

    const int32_t* pages(const QueryBlock& block) const {
        return step.batch.sequences[static_cast<size_t>(block.sequence)].pages;
    }
    const uint8_t* keys(const QueryBlock& block) const {
        return step.cache.keys(layer, block.kv_head);
    }
    void take_outputs() {
        for (int i = 0; i < a.rows; ++i)
            if (a.out[i] != to[i])
                std::copy_n(a.out[i] + heads.head_dim - heads.outputs(), heads.outputs(), to[i]);
        a.rows = 0;
    }

    const AttentionHeads& heads;
    const int layer;
    const std::vector<float>&sinks_of_heads, &slopes_of_heads;
    const Step& step;
    const AttentionKernels& kernels;
    const Activations &src, &dst;
    const BatchRows& rows;
    const AttentionPlan& plan;
    AttentionArgs a{};
    const float* q[kMaxRows];
    float *out[kMaxRows], *to[kMaxRows];  // where outputs go, with their padding and without
    float* padded_out;
    uint8_t* gathered = nullptr;
    const int32_t* gathered_pages = nullptr;
    const Activations* chosen = nullptr;
    int32_t limit[kMaxRows], next[kMaxRows];
    float sinks[kMaxRows] = {}, slopes[kMaxRows];
};

void AttentionOp::set_chosen(const OpFields& f) {
    const int32_t top_k = chosen_ ? static_cast<int32_t>(chosen_.width) : kNoTopK;
    f.require(plan_.top_k.value_or(top_k) == top_k, "chosen",
              "must be there in all layers of these heads");
    plan_.top_k = top_k;
    if (!chosen_) return;
    f.require(work.index.top_k == top_k, "chosen", "must be what an indexer has chosen");
    f.require(plan_.heads.value_dim && window_ == kNoWindow && slopes_.empty() &&
                  !plan_.bidirectional.value_or(false),
              "chosen", "needs keys that are values, without a window, slopes or later positions");
    gathered_pages_.resize(static_cast<size_t>((top_k + kPagePositions - 1) / kPagePositions));
    std::iota(gathered_pages_.begin(), gathered_pages_.end(), 0);
}

// The keys that a unit begins with: of one chunk. Of chosen ones none, as they are gathered first.
KeyPages AttentionOp::first_keys(const Step& step, const AttentionUnit& unit) const {
    const QueryBlock& block = plan_.blocks[static_cast<size_t>(unit.block)];
    if (plan_.chooses(step.batch, work.rows, block.first)) return {};
    const auto limit = [&](int n) {
        return int64_t{plan_.limit(step.batch, work.rows, block.first + n, window_)};
    };
    const int64_t next = work.rows.position_of[static_cast<size_t>(block.first)] + int64_t{1};
    const int64_t seen = std::max<int64_t>(0, next - window_);
    const int64_t from = std::max<int64_t>(seen, unit.chunk * int64_t{kChunkPositions});
    const int64_t chunk_end = (from / kChunkPositions + 1) * kChunkPositions;
    const int64_t to = std::min<int64_t>(limit(block.count - 1), chunk_end);
    const int64_t page = from / kPagePositions;
    const int64_t pages = (to + kPagePositions - 1) / kPagePositions - page;
    return {step.cache.keys(layer_, block.kv_head), step.cache.values(layer_, block.kv_head),
            step.batch.sequences[static_cast<size_t>(block.sequence)].pages + page,
            static_cast<int>(std::max<int64_t>(0, pages))};
}

void AttentionOp::attend(const Step& step, const AttentionUnit& unit, const AttentionUnit* before,
                         const AttentionUnit* after, int worker) {
    const std::span blocks(plan_.blocks.data() + unit.block, static_cast<size_t>(unit.count));
    auto* const partials = reinterpret_cast<float*>(work.partials.data());
    Call call(*this, step, work.scratch(worker));
    call.reads_next(after ? first_keys(step, *after) : KeyPages{}, !before);
    call.gather(blocks.front(), unit.chunk);
    if (unit.chunk < 0) {
        call.add(blocks.front(), partials);
        call.all();
        return;
    }
    // Behind a window rows of different positions do not see the same: there each block is a call.
    const bool one_call = window_ == kNoWindow;
    for (const auto& block : blocks) {
        call.add(block, partials);
        if (!one_call) call.chunk(unit.chunk, false, false);
    }
    if (one_call) {
        const bool ready = before && before->block == unit.block && before->count == unit.count;
        call.chunk(unit.chunk, unit.count > 1, ready);
    }
    for (auto& block : blocks) {
        // The last worker reads the results of the others, and resets the counter for the next layer.
        const std::atomic_ref left(block.left);
        if (left.fetch_sub(1, std::memory_order_acq_rel) > 1) continue;
        left.store(block.chunks, std::memory_order_relaxed);
        call.add(block, partials);
        call.merge();
    }
}

const OpKind attention("attention", [](const OpFields& f, Program& p) { p.add<AttentionOp>(f); });

}  // namespace

}  // namespace sterna
