// Programs as Python writes them; step.cpp runs them.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>

#include "bindings/adapters.h"
#include "bindings/attention.h"
#include "bindings/experts.h"
#include "bindings/recurrent.h"
#include "bindings/rows.h"
#include "bindings/step.h"
#include "runtime/fpenv.h"
#include "scalar_math.h"

namespace sterna::border {

namespace {

const Weight& weight_of(const PyProgram& p, int weight) {
    require(weight >= 0 && weight < static_cast<int>(p.weights.size()), "weight: no such weight");
    return p.weights[static_cast<size_t>(weight)];
}

const char* const kGlus[] = {"",       "relu2", "silu", "gelu", "gelu_pytorch_tanh",
                             "clamped"};  // by Glu

Glu glu_of(const std::string& name) {
    const auto* known = std::find(std::begin(kGlus), std::end(kGlus), name);
    require(known != std::end(kGlus),
            "glu: must be relu2, silu, gelu, gelu_pytorch_tanh, clamped or empty");
    return static_cast<Glu>(known - std::begin(kGlus));
}

void add_rowwise(PyProgram& p, const std::string& name, int src, int dst, int64_t width,
                 const std::string& glu, int64_t up_offset, std::optional<In<float, 1>> norm,
                 float eps, std::optional<int64_t> rounding, bool selected, bool keep_float,
                 int planes_for_weight, int residual, int64_t hadamard_block,
                 std::optional<In<float, 1>> signs, bool signs_last, int chosen, bool spread,
                 float limit, int up, int64_t parts, float factor, int code_planes) {
    Op op{OpKind::kRowwise, name};
    op.up = up == -1 ? src : up;
    require(width >= 1 && up_offset >= 0 && width <= width_of(p, dst) &&
                width <= width_of(p, src) && up_offset + width <= width_of(p, op.up),
            "rowwise: the buffers are too narrow");
    require(parts == 1 || (parts > 1 && width % parts == 0 && width / parts % kRowBlock == 0 &&
                           glu.empty() && norm && !rounding && !hadamard_block),
            "rowwise: parts, of a multiple of 16 values each, are normalised and no more");
    op.parts = parts;
    require(std::isfinite(factor), "rowwise: factor must be finite");
    op.factor = factor;
    require(factor == 1 || !rounding, "rowwise: what has a factor is not rounded");
    op.src = src;
    op.dst = dst;
    op.width = width;
    op.up_offset = up_offset;
    op.glu = glu_of(glu);
    require((op.glu == Glu::kClamped) == (limit > 0 && std::isfinite(limit)),
            "glu: a limit, which is positive, belongs to clamped alone");
    op.limit = limit;
    if (norm) op.norm = values_of(*norm, width / parts, "norm: must have `width` values");
    op.eps = eps;
    require(!rounding || *rounding == 0 || *rounding == kGroupK || *rounding == kLongGroupK,
            "rounding: must be 0, 32, 256 or None");
    op.rounding = rounding;
    require(code_planes == 1 || (code_planes == 2 && rounding),
            "rowwise: codes are in one plane or two, and two where it rounds");
    op.code_planes = code_planes;
    op.keep_float = keep_float || !rounding;
    op.selected = selected;
    require(residual == -1 ||
                (!rounding && residual != dst && width_of(p, residual) == width_of(p, dst)),
            "rowwise: a residual has a buffer of its own, and nothing with one is rounded");
    op.residual = residual;
    require(hadamard_block == 0 || (hadamard_block > 0 && width % 16 == 0 &&
                                    std::has_single_bit(static_cast<uint64_t>(hadamard_block)) &&
                                    width % hadamard_block == 0),
            "rowwise: hadamard_block must be a power of two that divides the width, which must be "
            "a multiple of 16");
    op.hadamard_block = hadamard_block;
    if (signs) op.signs = values_of(*signs, width, "signs: must have `width` values");
    op.signs_last = signs_last;
    require(planes_for_weight == -1 ||
                (weight_of(p, planes_for_weight).padded_k <= width_of(p, dst) && op.keep_float),
            "rowwise: does not fit the weight that reads it in planes");
    op.planes_for_weight = planes_for_weight;
    require(chosen == 0 || src != dst || !spread,
            "rowwise: spread rows have a buffer of their own");
    if (chosen != 0) of_experts(p, op, chosen, spread);
    p.code_planes_of[static_cast<size_t>(dst)] = code_planes;
    if (planes_for_weight >= 0)
        p.planes_of[static_cast<size_t>(dst)] = weight_of(p, planes_for_weight).format;
    p.program.add_op(std::move(op));
}

// chosen: where it is not 0, the weight is that of all experts, expert_rows of each.
void add_linear(PyProgram& p, const std::string& name, int weight, int src, int dst, int residual,
                bool selected, bool fast, int64_t column, std::optional<In<float, 1>> bias,
                float factor, float cap, int chosen, int64_t expert_rows, int code_planes) {
    Op op{OpKind::kLinear, name};
    const auto& w = weight_of(p, weight);
    const int64_t rows = chosen ? expert_rows : w.M;
    // Whole row blocks are written, aligned: with widths padded to kPad they fit.
    require(column >= 0 && column % kRowBlock == 0 && column <= width_of(p, dst),
            "linear: column must be a multiple of 16 within the buffer");
    require(w.padded_k <= width_of(p, src) && rows <= width_of(p, dst) - column,
            "linear: the buffers are too narrow");
    require(!fast || p.planes_of[static_cast<size_t>(src)] == w.format,
            "linear: the fast arithmetic reads planes that nothing has made");
    require(residual == -1 || width_of(p, residual) == width_of(p, dst),
            "linear: the residual's width differs");
    const bool integer = all_tables().front()->formats[w.format].integer;
    require(code_planes == (integer ? p.code_planes_of[static_cast<size_t>(src)] : 1),
            "linear: must read as many planes of codes as were made");
    op.weight = weight;
    op.src = src;
    op.dst = dst;
    op.code_planes = code_planes;
    op.residual = residual;
    op.selected = selected;
    op.fast = fast;
    op.column = column;
    op.factor = checked_factor(factor, "linear: factor must be finite and not 0");
    op.cap = checked_cap(cap);
    require(factor == 1 || residual != dst,
            "linear: with a factor the residual has a buffer of its own");
    if (chosen != 0) {
        of_experts(p, op, chosen, false);
        const int tile_rows = all_tables().front()->formats[w.format].tile_rows;
        require(expert_rows >= 1 && expert_rows <= w.M &&
                    (expert_rows + tile_rows - 1) / tile_rows * p.experts == w.tiles,
                "linear: the weight must have whole tiles for the rows of each expert");
        op.expert_rows = expert_rows;
    }
    if (bias)
        op.bias = values_of(*bias, chosen ? rows * p.experts : rows,
                            "bias: must have a value for each row");
    p.program.add_op(std::move(op));
}

// A float head [vocab, K], screened by the int8 shadow of its weight (head.h).
void add_head(PyProgram& p, const std::string& name, int weight, int shadow, In<float, 2> bounds,
              int src, int dst) {
    Op op{OpKind::kLinear, name};
    const Weight &w = weight_of(p, weight), &s = weight_of(p, shadow);
    require(w.padded_k <= width_of(p, src) && w.M <= width_of(p, dst) && w.M == p.vocab,
            "head: does not fit the buffers or the vocabulary");
    op.weight = weight;
    op.src = src;
    op.dst = dst;
    op.selected = true;
    const ShadowBounds checked = shadow_bounds(w, s, bounds);
    p.program.add_op(std::move(op));
    p.program.add_screen(s, checked);
    p.keep.push_back(nb::cast(bounds));
}

// chosen: as in add_linear, of rows of experts; all of them are added up together.
void add_squares(PyProgram& p, const std::string& name, int src, int64_t width, bool selected,
                 int chosen) {
    Op op{OpKind::kSquares, name};
    require(width >= 1 && width <= width_of(p, src), "squares: the buffer is too narrow");
    require(chosen == 0 || (chosen == p.chosen && p.of_experts[static_cast<size_t>(src)]),
            "squares: rows must be those of the experts that the last route has chosen");
    op.src = src;
    op.width = width;
    op.selected = selected;
    op.chosen = chosen;
    p.program.add_squares(std::move(op));
}

// The last operation, a linear layer whose weight may have copies of two-bit codes.
const Weight& last_for_copies(const PyProgram& p) {
    const Op* op = p.program.last();
    require(
        op && op->kind == OpKind::kLinear && op->bias.empty() && !op->selected && op->factor == 1 &&
            op->cap == 0 && op->active == Active::kAll && op->code_planes == 1,
        "active: the last operation must be a linear layer of all tokens and one plane of codes, "
        "without bias or factor");
    const Weight& w = weight_of(p, op->weight);
    require(Program::has_active_copies(w, *runnable_tables().back()),
            "active: the layout must have two-bit codes, and the weight a scale for each row");
    return w;
}

void read_open_rows(PyProgram& p, int64_t gates, const nb::int_& threads) {
    const Weight& w = last_for_copies(p);
    const auto& kernels = *runnable_tables().back();
    require(gates > 0 && gates % kernels.formats[w.format].tile_rows == 0 && w.M == 2 * gates &&
                p.program.last()->residual < 0 && p.program.last()->column == 0,
            "gates: must be the first half of the rows, whole tiles, without a residual");
    p.program.add_open_rows(gates, kernels, pool(threads));
}

void read_columns(PyProgram& p, const nb::int_& threads) {
    last_for_copies(p);
    require(p.program.last_input_rounded(), "columns: a rowwise operation must make the input");
    p.program.add_columns(*runnable_tables().back(), pool(threads));
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
    nb::class_<PyProgram> program(m, "Program");
    bind_attention_words(program);
    bind_recurrent_words(program);
    bind_expert_words(program);
    bind_adapter_words(m, program);
    bind_rows(program);
    program
        .def(
            "__init__",
            [](PyProgram* self, int n_heads, int n_kv_heads, int head_dim) {
                new (self) PyProgram();
                add_heads(*self, n_heads, n_kv_heads, head_dim);
            },
            "n_heads"_a, "n_kv_heads"_a, "head_dim"_a)
        .def(
            "rotary",
            [](PyProgram& p, std::vector<float> inverse_frequencies, bool interleaved,
               float factor) {
                const auto pairs = static_cast<int64_t>(inverse_frequencies.size());
                require(pairs >= 1 && 2 * pairs <= kMaxHeadDim,
                        "rotary: must have a frequency for each of 1..32,768 pairs");
                return p.program.add_rotary(std::move(inverse_frequencies), interleaved, factor);
            },
            "inverse_frequencies"_a, "interleaved"_a, "factor"_a = 1.0f)
        .def(
            "buffer",
            [](PyProgram& p, int64_t width) {
                require(width >= 1, "width: must be at least 1");
                p.widths.push_back((width + kPad - 1) / kPad * kPad);
                p.planes_of.push_back(-1);
                p.code_planes_of.push_back(1);
                p.of_experts.push_back(false);
                return p.program.add_buffer(width);
            },
            "width"_a)
        .def(
            "weight",
            [](PyProgram& p, nb::object weight) {
                const auto& w = nb::cast<const PyWeight&>(weight).weight;
                p.keep.push_back(weight);
                p.weights.push_back(w);
                p.mappings.add(nb::cast<const PyWeight&>(weight).mappings);
                return p.program.add_weight(w);
            },
            "weight"_a)
        .def(
            "embed",
            [](PyProgram& p, int weight, int dst, float factor) {
                Op op{OpKind::kEmbed, "embed_tokens"};
                op.factor = checked_factor(factor, "embed: factor must be finite and not 0");
                require(weight_of(p, weight).K <= width_of(p, dst), "embed: dst is too narrow");
                op.weight = weight;
                op.dst = dst;
                require(!p.vocab || p.vocab == weight_of(p, weight).M,
                        "embed: tables must have a row for each token");
                p.vocab = weight_of(p, weight).M;
                p.program.add_op(std::move(op));
            },
            "weight"_a, "dst"_a, "factor"_a = 1.0f)
        .def(
            "select",
            [](PyProgram& p, int src, int dst) {
                Op op{OpKind::kSelect, "select"};
                require(width_of(p, src) == width_of(p, dst), "select: the widths differ");
                op.src = src;
                op.dst = dst;
                op.selected = true;
                p.program.add_op(std::move(op));
            },
            "src"_a, "dst"_a)
        .def("rowwise", &add_rowwise, "name"_a, "src"_a, "dst"_a, "width"_a, "glu"_a = "",
             "up_offset"_a = 0, "norm"_a.none() = nb::none(), "eps"_a = 0.0f,
             "rounding"_a.none() = nb::none(), "selected"_a = false, "keep_float"_a = true,
             "planes_for_weight"_a = -1, "residual"_a = -1, "hadamard_block"_a = 0,
             "signs"_a.none() = nb::none(), "signs_last"_a = false, "chosen"_a = 0,
             "spread"_a = false, "limit"_a = 0.0f, "up"_a = -1, "parts"_a = 1, "factor"_a = 1.0f,
             "code_planes"_a = 1)
        .def("linear", &add_linear, "name"_a, "weight"_a, "src"_a, "dst"_a, "residual"_a = -1,
             "selected"_a = false, "fast"_a = false, "column"_a = 0, "bias"_a.none() = nb::none(),
             "factor"_a = 1.0f, "cap"_a = 0.0f, "chosen"_a = 0, "expert_rows"_a = 0,
             "code_planes"_a = 1)
        .def("squares", &add_squares, "name"_a, "src"_a, "width"_a, "selected"_a = false,
             "chosen"_a = 0)
        .def_prop_ro("square_sums", &square_sums, nb::rv_policy::move)
        .def("read_open_rows", &read_open_rows, "gates"_a, "threads"_a)
        .def("read_columns", &read_columns, "threads"_a)
        .def(
            "place",
            [](PyProgram& p, const nb::int_& threads, bool replicas) {
                Pool& workers = pool(threads);
                require(workers.team().nodes() > 1, "place: threads must be of several nodes");
                std::mutex& mutex = p.lock();  // under the GIL
                nb::gil_scoped_release release;
                const std::lock_guard guard(mutex);
                p.program.place(workers, replicas, *runnable_tables().back());
                p.mappings.require_whole();
            },
            "threads"_a, "replicas"_a)
        .def_prop_ro("left_out", [](PyProgram& p) { return between_runs(p, &Program::left_out); })
        .def(
            "to_bf16_planes",
            [](PyProgram& p, int weight, int src, bool selected) {
                Op op{OpKind::kToBf16Planes, "to_bf16_planes"};
                require(weight_of(p, weight).padded_k <= width_of(p, src),
                        "to_bf16_planes: the buffer is too narrow");
                op.src = op.dst = src;
                op.planes_for_weight = weight;
                p.planes_of[static_cast<size_t>(src)] = weight_of(p, weight).format;
                op.selected = selected;
                p.program.add_op(std::move(op));
            },
            "weight"_a, "src"_a, "selected"_a = false)
        .def_prop_ro(
            "seconds",
            [](PyProgram& p) {
                const char* kinds[kOpKinds] = {
                    "embed",  "select",         "rowwise", "linear", "rope",       "attention",
                    "screen", "to_bf16_planes", "conv",    "gates",  "recurrence", "gated",
                    "route",  "combine",        "squares", "adapt",  "copy",       "tell"};
                const std::array<double, kOpKinds> spent = between_runs(p, &Program::seconds);
                nb::dict seconds;
                for (int i = 0; i < kOpKinds; ++i)
                    seconds[kinds[i]] = spent[static_cast<size_t>(i)];
                return seconds;
            })
        .def_prop_ro("head_seconds",
                     [](PyProgram& p) { return between_runs(p, &Program::head_seconds); })
        .def(
            "end_without_head",
            [](PyProgram& p, int64_t width) {
                require(!p.widths.empty() && width >= 1 && width <= p.widths.back(),
                        "end_without_head: the last buffer is too narrow");
                p.hidden = width;
            },
            "width"_a)
        .def("head", &add_head, "name"_a, "weight"_a, "shadow"_a, "bounds"_a, "src"_a, "dst"_a)
        .def("run", &run_step, "cache"_a, "tokens"_a, "sequences"_a, "isa"_a, "threads"_a,
             "deciding"_a = std::vector<PyDeciding>(), "draws"_a = std::vector<PyDraw>(),
             "states"_a = std::vector<State*>(), "masks"_a.none() = nb::none(),
             "ahead"_a = std::vector<PyAhead>(), "adapters"_a = std::vector<PyAdapted>(),
             "given"_a.none() = nb::none(), "told"_a.none() = nb::none());
}

}  // namespace sterna::border
