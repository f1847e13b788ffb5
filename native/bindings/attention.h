// Words of attention as Python writes them: heads, rotations of queries and keys, and attention itself.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "bindings/step.h"

namespace sterna::border {

constexpr int kMaxLayers = 1 << 16;

// Heads that the program has.
inline const Program::Heads& heads_of(const PyProgram& p, int heads) {
    require(heads >= 0 && heads < p.program.heads_count(), "heads: no such heads");
    return p.program.heads(heads);
}

inline int add_heads(PyProgram& p, int n_heads, int n_kv_heads, int head_dim) {
    require(n_heads >= 1 && n_kv_heads >= 1 && n_heads % n_kv_heads == 0 && head_dim >= 2 &&
                head_dim <= kMaxHeadDim && head_dim % 2 == 0,
            "heads: n_heads must be a multiple of n_kv_heads, head_dim one of 2");
    return p.program.add_heads({n_heads, n_kv_heads, head_dim});
}

// A layer of the cache, of which an operation has these heads.
inline void use_layer(PyProgram& p, int layer, const Program::Heads& heads) {
    require(layer >= 0 && layer < kMaxLayers, "layer: must lie in 0..65,535");
    if (std::ssize(p.layers) <= layer) p.layers.resize(static_cast<size_t>(layer) + 1);
    auto& cached = p.layers[static_cast<size_t>(layer)];
    require(!cached.kv_heads || cached == heads.cached(), "layer: has other heads");
    cached = heads.cached();
}

// The logits of sinks as logarithms to base 2, within what float32 holds.
inline std::vector<float> sinks_of(const In<float, 1>& logits, int n_heads) {
    std::vector<float> sinks =
        values_of(logits, n_heads, "attention: sinks must have a value for each query head");
    constexpr float kMost = std::numeric_limits<float>::max();
    for (float& sink : sinks) {
        require(std::isfinite(sink), "attention: sinks must be finite");
        sink = std::clamp(sink * 1.44269504f, -kMost, kMost);
    }
    return sinks;
}

// Whose norms a layer has: of q, and where it stores them of k and v.
struct HeadNorms {
    std::optional<In<float, 1>> q, k, v;
    float eps;
    bool last;
};

inline void set_norms(Op& op, const Program::Heads& heads, const HeadNorms& norms) {
    require(norms.q.has_value() ? norms.k.has_value() == op.stores : !norms.k && !norms.v,
            "rope: q and k are normalised both or neither, and q alone where k is not stored");
    if (!norms.q) return;
    const char* rule = "rope: norms must have head_dim values, or as many as q and k";
    const int64_t d = heads.head_dim;
    const bool whole = static_cast<int64_t>(norms.q->shape(0)) != d;
    require(!whole || (!op.gated && !norms.last && op.stores && !norms.v),
            "rope: norms of all heads come first, and know no gates, values or shared keys");
    op.norm = values_of(*norms.q, whole ? heads.n_heads * d : d, rule);
    if (norms.k) op.k_norm = values_of(*norms.k, whole ? heads.n_kv_heads * d : d, rule);
    if (norms.v) op.v_norm = values_of(*norms.v, d, rule);
    op.norms_last = norms.last;
    op.eps = norms.eps;
}

inline void add_rope(PyProgram& p, int qkv, int layer, std::optional<In<float, 1>> q_norm,
                     std::optional<In<float, 1>> k_norm, float eps, int dst, int rotary, bool gated,
                     const std::string& name, bool norms_last, int heads, bool stores,
                     bool keys_are_values, std::optional<In<float, 1>> v_norm) {
    Op op{OpKind::kRope, name};
    const Program::Heads& r = heads_of(p, heads);
    op.attends = heads;
    require(rotary >= -1 && rotary < p.program.rotaries(), "rope: no such rotary");
    require(rotary == -1 || p.program.rotary_dim(rotary) <= r.head_dim,
            "rotary: must rotate no more values than a head has");
    op.rotary = rotary;
    require(stores || (!keys_are_values && !gated),
            "rope: a row of queries alone has neither keys nor gates");
    const int64_t all = r.n_heads + (stores ? int64_t{2} * r.n_kv_heads : 0);
    op.src = qkv;
    op.dst = dst == -1 ? qkv : dst;
    const int64_t stored = all + (gated ? r.n_heads : 0) - (keys_are_values ? r.n_kv_heads : 0);
    require(stored * r.head_dim <= width_of(p, qkv) && all * r.padded() <= width_of(p, op.dst),
            "rope: the buffers are too narrow");
    require((op.dst == qkv) == (r.padded() == r.head_dim && !gated && !keys_are_values),
            "rope: heads that are no multiple of 16, have gates, or no values, need a buffer");
    op.gated = gated;
    op.stores = stores;
    op.keys_are_values = keys_are_values;
    use_layer(p, layer, r);
    op.layer = layer;
    set_norms(op, r, {q_norm, k_norm, v_norm, eps, norms_last});
    p.program.add_op(std::move(op));
}

inline void add_attention(PyProgram& p, int qkv, int dst, int layer, std::optional<int32_t> window,
                          std::optional<float> scale, float cap, std::optional<In<float, 1>> sinks,
                          int heads) {
    Op op{OpKind::kAttention, "attention"};
    const Program::Heads& r = heads_of(p, heads);
    op.attends = heads;
    require(!window || *window >= 1, "attention: window must be at least 1");
    op.window = window.value_or(kNoWindow);
    op.scale = scale ? checked_factor(*scale, "attention: scale must be finite and not 0")
                     : 1.0f / __builtin_sqrtf(static_cast<float>(r.head_dim));
    op.cap = checked_cap(cap);
    if (sinks) op.sinks = sinks_of(*sinks, r.n_heads);
    require(int64_t{r.n_heads} * r.padded() <= width_of(p, qkv) &&
                int64_t{r.n_heads} * r.head_dim <= width_of(p, dst),
            "attention: the buffers are too narrow");
    use_layer(p, layer, r);
    op.src = qkv;
    op.dst = dst;
    op.layer = layer;
    p.program.add_op(std::move(op));
}

inline void bind_attention_words(nb::class_<PyProgram>& program) {
    program.def("heads", &add_heads, "n_heads"_a, "n_kv_heads"_a, "head_dim"_a)
        .def("rope", &add_rope, "qkv"_a, "layer"_a, "q_norm"_a.none() = nb::none(),
             "k_norm"_a.none() = nb::none(), "eps"_a = 0.0f, "dst"_a = -1, "rotary"_a = -1,
             "gated"_a = false, "name"_a = "self_attn", "norms_last"_a = false, "heads"_a = 0,
             "stores"_a = true, "keys_are_values"_a = false, "v_norm"_a.none() = nb::none())
        .def("attention", &add_attention, "qkv"_a, "dst"_a, "layer"_a,
             "window"_a.none() = nb::none(), "scale"_a.none() = nb::none(), "cap"_a = 0.0f,
             "sinks"_a.none() = nb::none(), "heads"_a = 0);
}

}  // namespace sterna::border
