// Programs as Python builds them; step.cpp runs them.
#include <cmath>
#include <functional>
#include <optional>

#include "bindings/adapters.h"
#include "bindings/op_fields.h"
#include "bindings/state.h"
#include "bindings/step.h"
#include "bindings/weight_cache.h"
#include "runtime/fpenv.h"
#include "scalar_math.h"

namespace sterna::border {

namespace {

int add_heads(PyProgram& p, int n_heads, int n_kv_heads, int head_dim, int value_dim) {
    require(n_heads >= 1 && n_kv_heads >= 1 && n_heads % n_kv_heads == 0 && head_dim >= 2 &&
                head_dim <= kMaxHeadDim && head_dim % 2 == 0,
            "heads: n_heads must be a multiple of n_kv_heads, head_dim one of 2");
    require(value_dim >= 0 && value_dim <= head_dim, "heads: value_dim must lie in 0..head_dim");
    return p.program.add_heads({n_heads, n_kv_heads, head_dim, value_dim});
}

int add_rotary(PyProgram& p, std::vector<float> inverse_frequencies, bool interleaved, float factor,
               std::vector<uint8_t> axes) {
    const auto pairs = static_cast<int64_t>(inverse_frequencies.size());
    require(pairs >= 1 && 2 * pairs <= kMaxHeadDim,
            "rotary: must have a frequency for each of 1..32,768 pairs");
    require(axes.empty() || (axes.size() == inverse_frequencies.size() &&
                             *std::ranges::max_element(axes) < kAxes),
            "rotary: axes: must be 0, 1 or 2 for each frequency");
    return p.program.work().rotations.add(
        {std::move(inverse_frequencies), interleaved, factor, std::move(axes)});
}

int add_buffer(PyProgram& p, int64_t width) {
    require(width >= 1, "width: must be at least 1");
    return p.program.add_buffer(width);
}

int add_weight(PyProgram& p, nb::object weight) {
    const auto& native = nb::cast<const PyWeight&>(weight);
    p.keep.push_back(weight);
    p.mappings.add(native.mappings);
    return p.program.work().weights.add(native.weight);
}

int add_value(PyProgram& p, int buffer, int64_t width, int experts, int chosen, int code_planes,
              bool floats, int planes_for, bool nonzeros) {
    require(buffer >= 0 && buffer < p.program.buffers(), "value: no such buffer");
    const Workspace& work = p.program.work();
    require(width >= 1 && padded_width(width) <= work.buffers[static_cast<size_t>(buffer)].ld,
            "value: must fit its buffer");
    require(experts >= 0 && chosen >= 0 && chosen <= experts, "value: chosen of so many experts");
    require(code_planes == 1 || code_planes == 2, "value: has one plane of codes or two");
    require(planes_for >= -1 && planes_for < work.weights.count(), "value: no such weight");
    const Operand value{buffer, width, experts, chosen, code_planes, floats, planes_for, nonzeros};
    p.program.add_value(value);
    p.values.push_back(value);
    return static_cast<int>(p.values.size()) - 1;
}

// threads: that copy the weight of a linear layer which leaves out what meets zeros.
void add_op(PyProgram& p, nb::handle op, const nb::dict& numbers,
            const std::optional<nb::int_>& threads) {
    const PyOpFields fields(p, op, numbers);
    const OpMaker make = OpKind::maker(fields.text("kind"));
    fields.require(make, "kind", "must be one that the core knows");
    p.program.work().pool = threads ? &pool(*threads) : nullptr;
    make(fields, p.program);
}

// A figure of the runs so far, by value: another thread may be in the middle of one.
template <class F>
auto between_runs(PyProgram& p, F figure) {
    std::mutex& mutex = p.lock();  // under the GIL
    nb::gil_scoped_release release;
    const std::lock_guard guard(mutex);
    return std::invoke(figure, p.program);
}

// (rows seen, a sum for each column, float64) of each of them.
std::vector<std::pair<int64_t, Out<double, 1>>> square_sums(PyProgram& p) {
    std::vector<std::pair<int64_t, Out<double, 1>>> found;
    for (const auto& sums : between_runs(p, &Program::squares)) {
        auto columns = make_array<double, 1>({sums.columns.size()});
        std::ranges::copy(sums.columns, columns.data());
        found.emplace_back(sums.rows, std::move(columns));
    }
    return found;
}

nb::dict seconds(PyProgram& p) {
    nb::dict all;
    for (const auto& [kind, spent] : between_runs(p, &Program::seconds)) all[kind.c_str()] = spent;
    return all;
}

void place(PyProgram& p, const nb::int_& threads, bool replicas) {
    Pool& workers = pool(threads);
    require(workers.team().nodes() > 1, "place: threads must be of several nodes");
    std::mutex& mutex = p.lock();  // under the GIL
    nb::gil_scoped_release release;
    const std::lock_guard guard(mutex);
    p.program.place(workers, replicas, *runnable_tables().back());
    p.mappings.require_whole();
}

// What is read through the cache is not read from its mapping.
void stream(PyProgram& p, nb::object weight_cache) {
    WeightCache& cache = nb::cast<PyWeightCache&>(weight_cache).cache;
    p.program.stream(cache);
    p.mappings = {};
    for (const nb::object& kept : p.keep) {
        if (!nb::isinstance<PyWeight>(kept)) continue;
        const auto& weight = nb::cast<const PyWeight&>(kept);
        if (cache.matrix_of(weight.weight.codes) < 0) p.mappings.add(weight.mappings);
    }
    p.weight_cache = std::move(weight_cache);
}

void end_without_head(PyProgram& p, int64_t width) {
    require(p.program.buffers() && width >= 1 && width <= p.program.logits_ld(),
            "end_without_head: the last buffer is too narrow");
    p.hidden = width;
}

std::vector<float> inverse_frequencies(double theta, int dim) {
    const FpEnvScope environment;
    std::vector<float> f;
    for (int i = 0; i < dim / 2; ++i)
        f.push_back(static_cast<float>(math::pow_d(theta, -2.0 * i / dim)));
    return f;
}

double natural_log(double x) {
    const FpEnvScope environment;
    require(x > 0 && std::isfinite(x), "log: x must be positive");
    return math::log_d(x);
}

double power(double x, double y) {
    const FpEnvScope environment;
    require(x > 0 && std::isfinite(x) && std::isfinite(y), "power: of a positive number");
    return math::pow_d(x, y);
}

}  // namespace

void bind_program(nb::module_& m) {
    m.def("inverse_frequencies", &inverse_frequencies, "theta"_a, "dim"_a);
    m.def("log", &natural_log, "x"_a);
    m.def("power", &power, "x"_a, "y"_a);
    bind_state(m);
    bind_adapter(m);
    nb::class_<PyProgram>(m, "Program")
        .def(nb::init<>())
        .def("heads", &add_heads, "n_heads"_a, "n_kv_heads"_a, "head_dim"_a, "value_dim"_a = 0)
        .def("rotary", &add_rotary, "inverse_frequencies"_a, "interleaved"_a, "factor"_a = 1.0f,
             "axes"_a = std::vector<uint8_t>())
        .def("buffer", &add_buffer, "width"_a)
        .def("weight", &add_weight, "weight"_a)
        .def("value", &add_value, "buffer"_a, "width"_a, "experts"_a = 0, "chosen"_a = 0,
             "code_planes"_a = 1, "floats"_a = true, "planes_for"_a = -1, "nonzeros"_a = false)
        .def("add", &add_op, "op"_a, "numbers"_a, "threads"_a.none() = nb::none())
        .def("stream", &stream, "weight_cache"_a)
        .def("end_without_head", &end_without_head, "width"_a)
        .def("place", &place, "threads"_a, "replicas"_a)
        .def_prop_ro("state_bytes", [](const PyProgram& p) { return p.program.state_bytes(); })
        .def_prop_ro("square_sums", &square_sums, nb::rv_policy::move)
        .def_prop_ro("left_out", [](PyProgram& p) { return between_runs(p, &Program::left_out); })
        .def_prop_ro("seconds", &seconds)
        .def_prop_ro("head_seconds",
                     [](PyProgram& p) { return between_runs(p, &Program::head_seconds); })
        .def("run", &run_step, "cache"_a, "tokens"_a, "sequences"_a, "isa"_a, "threads"_a,
             "deciding"_a = std::vector<PyDeciding>(), "draws"_a = std::vector<PyDraw>(),
             "states"_a = std::vector<State*>(), "masks"_a.none() = nb::none(),
             "ahead"_a = std::vector<PyAhead>(), "adapters"_a = std::vector<PyAdapted>(),
             "previous_hidden_states"_a.none() = nb::none(), "hidden_states"_a.none() = nb::none(),
             "second_parts"_a = std::vector<PySecondPart>(), "images"_a.none() = nb::none(),
             "kept"_a.none() = nb::none(), "part"_a.none() = nb::none());
}

}  // namespace sterna::border
