// Words of recurrent layers, and the states of these, as Python writes and keeps them.
#pragma once
#include <algorithm>
#include <optional>
#include <string>

#include "bindings/step.h"
#include "runtime/fpenv.h"
#include "scalar_math.h"

namespace sterna::border {

inline RecurrentHeads recurrent_heads(int k_heads, int v_heads, int64_t k_dim, int64_t v_dim,
                                      bool tiled) {
    require(k_heads >= 1 && v_heads >= 1 && v_heads % k_heads == 0,
            "recurrence: v_heads must be a multiple of k_heads");
    require(std::max(k_heads, v_heads) <= kMaxHeadDim && k_dim >= 1 && k_dim <= kMaxHeadDim &&
                v_dim >= 1 && v_dim <= kMaxHeadDim,
            "recurrence: heads and their width must lie in 1..65,536");
    return {k_heads, v_heads, k_dim, v_dim, tiled};
}

inline void add_conv(PyProgram& p, const std::string& name, int row, In<float, 2> taps) {
    Op op{OpKind::kConv, name};
    const auto width = static_cast<int64_t>(taps.shape(0));
    const auto channels = static_cast<int64_t>(taps.shape(1));
    require(width >= 1 && width <= kMaxConvWidth, "conv: width must lie in 1..16");
    require(channels >= 1 && channels <= width_of(p, row), "conv: the buffer is too narrow");
    op.src = op.dst = row;
    op.heads = {0, 1, 0, channels};
    op.taps.assign(taps.data(), taps.data() + width * channels);
    p.program.add_recurrent(std::move(op), (width - 1) * channels);
}

inline void add_recurrence(PyProgram& p, const std::string& name, int row, int dst, int k_heads,
                           int v_heads, int64_t k_dim, int64_t v_dim, int64_t a, int64_t b,
                           const In<float, 1>& rate, const In<float, 1>& bias, bool tiled) {
    Op gates{OpKind::kGates, name}, op{OpKind::kRecurrence, name};
    const auto heads = recurrent_heads(k_heads, v_heads, k_dim, v_dim, tiled);
    const int64_t width = width_of(p, row);
    require(heads.channels() <= a && heads.channels() <= b && a <= width - v_heads &&
                b <= width - v_heads && (a + v_heads <= b || b + v_heads <= a) &&
                heads.v_width() <= width_of(p, dst) && row != dst,
            "recurrence: the buffers are too narrow");
    const char* rule = "recurrence: rate and bias must have v_heads values";
    gates.rate = values_of(rate, v_heads, rule);
    gates.bias = values_of(bias, v_heads, rule);
    gates.src = gates.dst = op.src = row;
    op.dst = dst;
    gates.heads = op.heads = heads;
    gates.a = op.a = a;
    gates.b = op.b = b;
    p.program.add_op(std::move(gates));
    p.program.add_recurrent(std::move(op), v_heads * heads.head_floats());
}

inline void add_gated(PyProgram& p, const std::string& name, int src, int gate, int dst, int heads,
                      int k_heads, int64_t head_dim, int64_t column, int64_t stride,
                      const std::string& activation, std::optional<In<float, 1>> norm, float eps,
                      bool single) {
    Op op{OpKind::kGated, name};
    require(heads >= 1 && heads <= kMaxHeadDim && head_dim >= 1 && head_dim <= kMaxHeadDim &&
                stride >= head_dim && stride <= 2 * kMaxHeadDim && column >= 0,
            "gated: heads and their width must lie in 1..65,536");
    require(k_heads >= 1 && heads % k_heads == 0, "gated: heads must be a multiple of k_heads");
    require(heads * head_dim <= std::min(width_of(p, src), width_of(p, dst)) &&
                column + (heads - 1) * stride + (single ? 1 : head_dim) <= width_of(p, gate) &&
                gate != dst && (src != dst || k_heads == heads),
            "gated: the buffers are too narrow");
    require(activation == "silu" || activation == "sigmoid", "gated: must be silu or sigmoid");
    op.src = src;
    op.gate = gate;
    op.dst = dst;
    op.heads = {k_heads, heads, 0, head_dim, true};
    op.column = column;
    op.gate_stride = stride;
    op.silu = activation == "silu";
    op.single = single;
    if (norm) op.norm = values_of(*norm, head_dim, "gated: a norm must have head_dim values");
    op.eps = eps;
    p.program.add_op(std::move(op));
}

// e^x, each rounded to float once.
inline Out<float, 1> exponentials(const In<float, 1>& x) {
    const FpEnvScope environment;
    auto out = make_array<float, 1>({x.shape(0)});
    std::transform(x.data(), x.data() + x.shape(0), out.data(), [](float value) {
        return static_cast<float>(math::exp_d(static_cast<double>(value)));
    });
    return out;
}

inline void bind_state(nb::module_& m) {
    m.def("exponentials", &exponentials, "x"_a);
    nb::class_<State>(m, "State")
        .def(
            "__init__",
            [](State* self, int64_t nbytes) {
                require(nbytes >= 1, "state: must have at least 1 byte");
                new (self) State(nbytes);
            },
            "nbytes"_a)
        .def(
            "copy_from",
            [](State& to, const State& from, std::optional<int64_t> of) {
                require(!of || *of >= 0, "state: position must not be negative");
                require(&to != &from && to.memory.size() == from.memory.size(),
                        "state: must be another one, of the same size");
                // Whoever looks at it meanwhile, from another thread, finds it of no use.
                const int64_t position = of.value_or(from.position);
                to.position = -1;
                nb::gil_scoped_release release;
                std::copy_n(from.memory.data(), from.memory.size(), to.memory.data());
                to.position = position;
            },
            "source"_a, "position"_a.none() = nb::none())
        .def(
            "read",
            [](const State& s, const Bytes& out) {
                require(out.size() == s.memory.size(), "out: must have the bytes of the state");
                nb::gil_scoped_release release;
                std::copy_n(s.memory.data(), s.memory.size(), out.data());
            },
            "out"_a)
        .def(
            "write",
            [](State& s, const In<uint8_t, 1>& data, int64_t position) {
                require(data.size() == s.memory.size() && position >= 0,
                        "data: must have the bytes of the state, and be of a position");
                s.position = -1;
                nb::gil_scoped_release release;
                std::copy_n(data.data(), s.memory.size(), s.memory.data());
                s.position = position;
            },
            "data"_a, "position"_a)
        .def("forget", [](State& s) { s.position = -1; })
        .def_prop_ro("nbytes", [](const State& s) { return s.memory.size(); })
        .def_prop_ro("position", [](const State& s) { return s.position; });
}

inline void bind_recurrent_words(nb::class_<PyProgram>& program) {
    program.def("conv", &add_conv, "name"_a, "row"_a, "taps"_a)
        .def("recurrence", &add_recurrence, "name"_a, "row"_a, "dst"_a, "k_heads"_a, "v_heads"_a,
             "k_dim"_a, "v_dim"_a, "a"_a, "b"_a, "rate"_a, "bias"_a, "tiled"_a = false)
        .def("gated", &add_gated, "name"_a, "src"_a, "gate"_a, "dst"_a, "heads"_a, "k_heads"_a,
             "head_dim"_a, "column"_a, "stride"_a, "activation"_a, "norm"_a.none() = nb::none(),
             "eps"_a = 0.0f, "single"_a = false)
        .def_prop_ro("state_bytes", [](const PyProgram& p) { return p.program.state_bytes(); });
}

}  // namespace sterna::border
