// Bindings of the sums of a search for scales (sterna.formats.search).
#include "bindings/common.h"
#include "rounding/nearest_sums.h"

namespace sterna::border {

namespace {

template <class T>
nb::tuple sums_of(const NearestSums& a) {
    const size_t shape[] = {static_cast<size_t>(a.G)};
    auto xq = make_array<T, 1>(shape), qq = make_array<T, 1>(shape), eq = make_array<T, 1>(shape);
    {
        nb::gil_scoped_release release;
        nearest_sums(a, xq.data(), qq.data(), eq.data());
    }
    return nb::make_tuple(xq, qq, eq);
}

nb::tuple sums(In<float, 2> x, In<float, 2> ex, In<float, 2> e, In<float, 1> inverse,
               std::optional<In<float, 1>> minimum, float low, float high, float step,
               std::optional<In<float, 1>> of_halves, bool in_doubles) {
    NearestSums a{};
    a.n = static_cast<int64_t>(x.shape(0));
    a.G = static_cast<int64_t>(x.shape(1));
    const auto of_groups = [&](const In<float, 1>& values) {
        return values.shape(0) == x.shape(1);
    };
    require(ex.shape(0) == x.shape(0) && ex.shape(1) == x.shape(1), "ex: must have the shape of x");
    require(e.shape(0) == x.shape(0) && (e.shape(1) == 1 || e.shape(1) == x.shape(1)),
            "e: must have the shape of x, or one column");
    require(of_groups(inverse) && (!minimum || of_groups(*minimum)),
            "inverse, minimum: must have one number for each group");
    require(low <= high && step > 0 && high - low < 1 << 20, "low, high, step: must be levels");
    require(!of_halves || of_halves->shape(0) == static_cast<size_t>(2 * (high - low)) + 1,
            "of_halves: must have a level for each half from low to high");
    a.x = x.data();
    a.ex = ex.data();
    a.e = e.data();
    a.e_is_shared = e.shape(1) == 1;
    a.inverse = inverse.data();
    a.minimum = minimum ? minimum->data() : nullptr;
    a.levels = {low, high, step, of_halves ? of_halves->data() : nullptr};
    return in_doubles ? sums_of<double>(a) : sums_of<float>(a);
}

}  // namespace

void bind_rounding(nb::module_& m) {
    m.def("nearest_sums", &sums, "x"_a, "ex"_a, "e"_a, "inverse"_a, "minimum"_a.none(), "low"_a,
          "high"_a, "step"_a, "of_halves"_a.none(), "in_doubles"_a);
}

}  // namespace sterna::border
