// Words for rows that a program is given beside its tokens, and for those that it tells beside its logits.
#pragma once
#include <optional>
#include <string>

#include "bindings/step.h"

namespace sterna::border {

// width values of a row, or, where src is -1, all of the row that a step is given for each token.
inline void add_copy(PyProgram& p, int src, int dst, int64_t column, int64_t width) {
    Op op{OpKind::kCopy, "copy"};
    require(width >= 1 && column >= 0 && column <= width_of(p, dst) &&
                width <= width_of(p, dst) - column,
            "copy: dst is too narrow");
    require(src == -1 || (src != dst && width <= width_of(p, src)), "copy: src is too narrow");
    require(src != -1 || p.given == 0 || p.given == width, "copy: a step is given one kind of row");
    if (src == -1) p.given = width;
    op.src = src;
    op.dst = dst;
    op.column = column;
    op.width = width;
    p.program.add_op(std::move(op));
}

// RMSNorm of a row, told to who asks for it.
inline void add_tell(PyProgram& p, const std::string& name, int src, int dst,
                     const In<float, 1>& norm, float eps) {
    Op op{OpKind::kTell, name};
    const auto width = static_cast<int64_t>(norm.shape(0));
    require(width >= 1 && width <= width_of(p, src) && width <= width_of(p, dst) && p.told == 0,
            "tell: the buffers are too narrow, or another row is told");
    p.told = op.width = width;
    op.src = op.up = src;
    op.dst = dst;
    op.norm = values_of(norm, width, "norm: must have `width` values");
    op.eps = eps;
    p.program.add_op(std::move(op));
}

inline void bind_rows(nb::class_<PyProgram>& program) {
    program.def("copy", &add_copy, "src"_a, "dst"_a, "column"_a, "width"_a)
        .def("tell", &add_tell, "name"_a, "src"_a, "dst"_a, "norm"_a, "eps"_a);
}

// Rows of so many tokens that a step is given, or is to tell.
template <class Array>
auto rows_of(const std::optional<Array>& rows, size_t tokens, int64_t width, const char* rule) {
    require(!rows || (width > 0 && rows->shape(0) == tokens &&
                      static_cast<int64_t>(rows->shape(1)) == width),
            rule);
    return rows ? rows->data() : nullptr;
}

}  // namespace sterna::border
