// Words of experts, as Python writes them.
#pragma once
#include <algorithm>
#include <optional>
#include <string>

#include "bindings/step.h"

namespace sterna::border {

constexpr int kMaxExperts = 4096;

inline void add_route(PyProgram& p, const std::string& name, int src, int dst, int experts,
                      int chosen, bool of_all, const std::optional<In<float, 1>>& factors) {
    Op op{OpKind::kRoute, name};
    require(experts >= 1 && experts <= kMaxExperts && chosen >= 1 && chosen <= experts,
            "route: experts must lie in 1..4096, and those of a token in 1..experts");
    require(experts <= width_of(p, src) && chosen <= width_of(p, dst) && src != dst,
            "route: the buffers are too narrow");
    op.src = src;
    op.dst = dst;
    op.experts = p.experts = experts;
    op.chosen = p.chosen = chosen;
    op.of_all = of_all;
    if (factors)
        op.expert_factors = values_of(*factors, experts, "route: factors must be one an expert");
    p.program.add_op(std::move(op));
}

// Makes an operation one of rows of experts, whose experts the last route has chosen.
inline void of_experts(PyProgram& p, Op& op, int chosen, bool spread) {
    require(chosen == p.chosen, "experts: must be those that the last route has chosen");
    require(!op.selected && op.residual < 0,
            "experts: their rows have no residual, and none is selected");
    require(spread != p.of_experts[static_cast<size_t>(op.src)],
            "experts: reads rows of experts, or where it spreads them rows of tokens");
    op.experts = p.experts;
    op.chosen = chosen;
    op.spread = spread;
    p.of_experts[static_cast<size_t>(op.dst)] = true;
}

inline void add_combine(PyProgram& p, const std::string& name, int src, int shares, int dst,
                        int residual, int64_t width) {
    Op op{OpKind::kCombine, name};
    require(p.chosen >= 1 && p.of_experts[static_cast<size_t>(src)],
            "combine: reads rows of the experts that a route has chosen");
    require(p.chosen <= width_of(p, shares) && width >= 1 &&
                width <= std::min(width_of(p, src), width_of(p, dst)) && dst != src &&
                dst != shares && (residual == -1 || width <= width_of(p, residual)),
            "combine: the buffers are too narrow");
    op.src = src;
    op.shares = shares;
    op.dst = dst;
    op.residual = residual;
    op.width = width;
    op.chosen = p.chosen;
    p.program.add_op(std::move(op));
}

inline void bind_expert_words(nb::class_<PyProgram>& program) {
    program
        .def("route", &add_route, "name"_a, "src"_a, "dst"_a, "experts"_a, "chosen"_a,
             "of_all"_a = false, "factors"_a.none() = nb::none())
        .def("combine", &add_combine, "name"_a, "src"_a, "shares"_a, "dst"_a, "residual"_a,
             "width"_a);
}

}  // namespace sterna::border
