// Queries and keys on their way to attention: norms of heads, the rotation, and keys and values into the cache.
#include <algorithm>
#include <cmath>

#include "program/program.h"

namespace sterna {

namespace {

constexpr int kMaxLayers = 1 << 16;

class RopeOp final : public Op {
  public:
    RopeOp(const OpFields& f, Workspace& work)
        : Op(f, work),
          qkv_(f.value("x")),
          output_(f.value("output")),
          heads_(work.attention[static_cast<size_t>(f.required("heads"))].heads),
          rotary_(f.number_of("attention.rotary")),
          layer_(static_cast<int>(f.whole("layer"))),
          stores_(f.flag("stores")),
          keys_are_values_(f.flag("keys_are_values")),
          gated_(f.flag("gated")),
          norms_last_(f.flag("norms_last")),
          eps_(f.number("eps")),
          growth_(f.floats("attention.growth", 2, "must be a rate and a number of positions")) {
        check(f);
        set_norms(f);
        use_layer(f);
    }
    const char* kind() const override { return "rope"; }
    void run(Step& step, Turn& turn) override {
        for (int64_t n = turn.begin; n < turn.end;) {
            const int64_t end = n + together(n, turn.end);
            bool finite = true;
            for (int64_t i = n; i < end; ++i) finite = turned(step, i) && finite;
            if (stores_) finite = store(step, n, static_cast<int>(end - n)) && finite;
            if (!finite) report(step);
            n = end;
        }
    }

  private:
    int64_t together(int64_t n, int64_t end) const;
    bool turned(const Step& step, int64_t n) const;
    void check(const OpFields& f) const;
    void set_norms(const OpFields& f);
    void use_layer(const OpFields& f);
    // Of keys, and of values if they have any.
    int stored_heads() const {
        return stores_ ? (heads_.value_dim ? 1 : 2) * heads_.n_kv_heads : 0;
    }
    bool normalise(const Step& step, float* qkv) const;
    float* copy_heads(const float* qkv, int64_t n) const;
    void grow(float* queries, int64_t n) const;
    bool store(const Step& step, int64_t n, int count) const;

    Operand qkv_, output_;
    AttentionHeads heads_;
    int rotary_;  // -1: none
    int layer_;  // of the cache
    bool stores_;  // keys and values; else the layer reads those of an earlier one
    bool keys_are_values_;  // the row has no values, which are its keys as they come
    bool gated_;  // each head of q is followed by as many values of its gate, which do not move
    bool norms_last_;  // after the rotation
    bool whole_ = false;  // norms are of all heads of q, and of k
    std::vector<float> q_norm_, k_norm_, v_norm_;
    float eps_;
    std::vector<float> growth_;  // rate and period, or empty
};

void RopeOp::check(const OpFields& f) const {
    f.require(rotary_ == -1 || work.rotations.at(rotary_).dim() <= heads_.head_dim,
              "attention.rotary", "must rotate no more values than a head has");
    f.require(stores_ || (!keys_are_values_ && !gated_), "stores",
              "must be true where a row has keys that are values, or gates");
    f.require(growth_.empty() || (std::isfinite(growth_[0]) && growth_[0] > 0 && growth_[1] >= 1),
              "attention.growth", "must be a positive rate, and at least one position");
    f.require(!heads_.value_dim || (!keys_are_values_ && f.floats("v_norm").empty()), "heads",
              "must have values of their own where keys are copied to these, or values normalised");
    const int64_t all = heads_.n_heads + stored_heads();
    const int64_t stored =
        all + (gated_ ? heads_.n_heads : 0) - (keys_are_values_ ? heads_.n_kv_heads : 0);
    f.require(stored * heads_.head_dim <= qkv_.ld(), "x", "is too narrow");
    f.require(all * heads_.padded() <= output_.ld(), "output", "is too narrow");
    f.require((output_.buffer == qkv_.buffer) ==
                  (heads_.padded() == heads_.head_dim && !gated_ && !keys_are_values_),
              "output",
              "needs a buffer where heads are no multiple of 16, have gates, or no values");
}

void RopeOp::set_norms(const OpFields& f) {
    q_norm_ = f.floats("q_norm"), k_norm_ = f.floats("k_norm"), v_norm_ = f.floats("v_norm");
    const bool norms = !q_norm_.empty();
    f.require(norms ? !k_norm_.empty() == stores_ : k_norm_.empty() && v_norm_.empty(), "k_norm",
              "must be there with q_norm where keys are stored, and not without");
    const auto d = static_cast<size_t>(heads_.head_dim);
    whole_ = norms && q_norm_.size() != d;
    f.require(!whole_ || (!gated_ && !norms_last_ && stores_ && v_norm_.empty()), "q_norm",
              "of all heads comes first, without gates, norms of values or shared keys");
    const auto fits = [&](const std::vector<float>& norm, int heads) {
        return norm.empty() || norm.size() == (whole_ ? static_cast<size_t>(heads) * d : d);
    };
    f.require(fits(q_norm_, heads_.n_heads) && fits(k_norm_, heads_.n_kv_heads) &&
                  (v_norm_.empty() || v_norm_.size() == d),
              "q_norm", "must have head_dim values, or as many as all heads");
}

void RopeOp::use_layer(const OpFields& f) {
    auto& layers = work.needs.layers;
    f.require(layer_ >= 0 && layer_ < kMaxLayers, "layer", "must lie in 0..65,535");
    if (std::ssize(layers) <= layer_) layers.resize(static_cast<size_t>(layer_) + 1);
    auto& cached = layers[static_cast<size_t>(layer_)];
    f.require(!cached.kv_heads || cached == heads_.cached(), "heads",
              "must be those of the layer whose keys it reads");
    cached = heads_.cached();
}

// RMSNorm of q and of k, each as a whole or every head of them by itself, and of those of v; false: a value is not
// finite.
bool RopeOp::normalise(const Step& step, float* qkv) const {
    const int q = whole_ ? 1 : heads_.n_heads, k = !stores_ ? 0 : whole_ ? 1 : heads_.n_kv_heads;
    const int v = v_norm_.empty() ? 0 : k;
    const auto stride = whole_ ? static_cast<int64_t>(q_norm_.size()) : heads_.padded();
    bool finite = true;
    for (int i = 0; i < q + k + v; ++i) {
        const std::vector<float>& norm = i < q ? q_norm_ : i < q + k ? k_norm_ : v_norm_;
        RowwiseArgs a{};
        a.x = a.yf = qkv + i * stride;
        a.width = static_cast<int64_t>(norm.size());
        a.norm = norm.data();
        a.eps = eps_;
        finite = step.kernels.rowwise(a) && finite;
    }
    return finite;
}

// The row's heads of q, k and v side by side in the operation's own buffer, each padded with zeros.
float* RopeOp::copy_heads(const float* qkv, int64_t n) const {
    float* const row = work.buffer(output_).row(n);
    const int d = heads_.head_dim, padded = heads_.padded(), q = heads_.n_heads;
    for (int h = 0; h < q + stored_heads(); ++h) {
        const int gates = !gated_ ? 0 : std::min(h, q);  // before it
        const bool again = keys_are_values_ && h >= q + heads_.n_kv_heads;
        const int from = h + gates - (again ? heads_.n_kv_heads : 0);
        float* end = std::copy_n(qkv + int64_t{from} * d, d, row + int64_t{h} * padded);
        std::fill_n(end, padded - d, 0.0f);
    }
    return row;
}

// How many tokens from n on, before `end`, have positions of one sequence that are stored together.
int64_t RopeOp::together(int64_t n, int64_t end) const {
    const auto &sequence = work.rows.sequence_of, &position = work.rows.position_of;
    const auto first = static_cast<size_t>(n);
    auto next = first + 1;
    while (next < static_cast<size_t>(end) && sequence[next] == sequence[first] &&
           position[next] % kStoredTogether != 0)
        ++next;
    return static_cast<int64_t>(next - first);
}

// Makes the row of a token as attention reads it; false: a value is not finite.
bool RopeOp::turned(const Step& step, int64_t n) const {
    float* qkv = work.buffer(qkv_).streamed(n, step.tokens);
    bool finite = true;
    if (whole_) finite = normalise(step, qkv);  // before padding parts the heads
    if (output_.buffer != qkv_.buffer) qkv = copy_heads(qkv, n);
    const int rotated = heads_.n_heads + (stores_ ? heads_.n_kv_heads : 0);
    RopeArgs rotation{qkv, nullptr, nullptr, rotated, heads_.padded(), 0, false};
    if (rotary_ >= 0) work.rotations.set(rotation, rotary_, n);
    const bool of_heads = !q_norm_.empty() && !whole_;
    if (of_heads && !norms_last_) finite = normalise(step, qkv);
    finite = step.kernels.rope(rotation) && finite;
    if (of_heads && norms_last_) finite = normalise(step, qkv) && finite;
    if (!growth_.empty()) grow(qkv, n);
    return finite;
}

// Scales queries by a factor that grows with each period of positions; in the first it is one.
void RopeOp::grow(float* queries, int64_t n) const {
    const double period = work.rows.position_of[static_cast<size_t>(n)] / double{growth_[1]};
    if (period < 1) return;
    const auto factor = static_cast<float>(
        1 + growth_[0] * math::log_d(1 + static_cast<double>(static_cast<int64_t>(period))));
    for (int64_t i = 0; i < int64_t{heads_.n_heads} * heads_.padded(); ++i) queries[i] *= factor;
}

// Writes the keys of tokens, and the values after them, to the cache; false: a value is not finite.
bool RopeOp::store(const Step& step, int64_t n, int count) const {
    const KvCache& cache = step.cache;
    const auto& [kv_heads, head_dim, keys_alone] = cache.heads(layer_);
    const auto token = static_cast<size_t>(n);
    const int position = work.rows.position_of[token];
    const auto& span = step.batch.sequences[static_cast<size_t>(work.rows.sequence_of[token])];
    const int64_t at = span.pages[position / kPagePositions] * cache.page_stride(layer_);
    float* const keys = work.buffer(output_).row(n) + heads_.n_heads * heads_.padded();
    float* const values = keys_alone ? nullptr : keys + kv_heads * head_dim;
    uint8_t* const v_page = keys_alone ? nullptr : cache.values(layer_) + at;
    return step.kernels.kv_store({keys, values, output_.ld(), cache.keys(layer_) + at, v_page,
                                  position % kPagePositions, count, kv_heads, head_dim,
                                  cache.types(layer_)});
}

const OpKind rope("rope", [](const OpFields& f, Program& p) { p.add<RopeOp>(f); });

}  // namespace

}  // namespace sterna
