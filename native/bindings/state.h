// The recurrent state of a sequence, for Python.
#pragma once
#include <algorithm>
#include <optional>

#include "bindings/common.h"
#include "runtime/fpenv.h"
#include "scalar_math.h"

namespace sterna::border {

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
                // Another thread that looks at it meanwhile finds a state without a position.
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

}  // namespace sterna::border
