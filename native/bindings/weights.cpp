// Bindings of weights: packing, unpacking, one linear layer.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>

#include "bindings/common.h"
#include "runtime/finite.h"

namespace sterna::border {

namespace {

// (scales uint8 [tiles][bytes], k of a group, k of a group of activations, a name below, whether there are
// minima, unit)
using PyGroups = std::tuple<In<uint8_t, 2>, int64_t, int64_t, std::string, bool, float>;

ScaleType scale_type(const std::string& name) {
    const auto at = std::ranges::find(kScaleNames, name);
    require(at != std::end(kScaleNames), "scales: no layout of this name");
    return static_cast<ScaleType>(at - std::begin(kScaleNames));
}

// Scales in groups, checked to fit the weight.
GroupScales group_scales(const PyGroups& groups, const Weight& w, const FormatKernels& f) {
    const auto& [data, group, x_group, type, minima, unit] = groups;
    require(group > 0 && group < int64_t{1} << 31, "group: must lie in 1..2^31 - 1");
    GroupScales s{data.data(),
                  group,
                  x_group,
                  scale_type(type),
                  minima,
                  unit,
                  GroupScales::inverse_of(group)};
    if (s.super()) {
        require(f.super_group > 0 && group == f.super_group && x_group == kGroupK,
                "group: this layout has super-blocks of others, or none");
        require(s.odd() == f.odd_scales && !(minima && s.odd()) &&
                    (s.type != ScaleType::kOdd3 || group == 16),
                "scales: must be those that the layout's kernels read");
        require(w.K % kSuperK == 0, "K: must be a multiple of 256 for super-blocks");
        require(w.zero_x2 == 2 * f.super_offset,
                "zero_x2: must be that of the layout's super-blocks");
    } else if (s.micro()) {
        require(f.micro && group == kMicroK && x_group == kGroupK && !minima,
                "group: this layout has no micro-blocks, or of 16 k alone");
        require(w.zero_x2 % 2 == 0, "zero_x2: must be even");
    } else {
        require(f.groups || f.long_groups, "groups: this layout has one scale for each row");
        require(f.minima || !minima, "groups: this layout has no minima");
        require(w.zero_x2 % 2 == 0 || !f.even_offset,
                "zero_x2: must be even where this layout has groups");
        require((f.groups && x_group == kGroupK) || (f.long_groups && x_group == kLongGroupK),
                "x_group: must be 32 or 256, and one that the layout has kernels for");
        require(group % x_group == 0 && w.padded_k % x_group == 0,
                "group: must be a multiple of 32, and of the activations' groups");
    }
    const int tile_rows = f.tile_rows;
    require(static_cast<int64_t>(data.shape(0)) == w.tiles &&
                static_cast<int64_t>(data.shape(1)) == s.tile_bytes(w.padded_k, tile_rows),
            "scales: shape does not fit M, K and the group");
    return s;
}

void set_levels(Weight& w, const std::vector<int>& levels, const FormatKernels& f) {
    require(static_cast<int>(levels.size()) == f.levels,
            "levels: there must be as many as the layout looks up");
    require(
        std::ranges::all_of(
            levels, [&](int level) { return level >= -f.level_offset && level < f.level_offset; }),
        "levels: must be ones that the layout decodes");
    std::ranges::copy(levels, w.levels.of);
}

PyWeight make_weight(const std::string& layout, int64_t M, int64_t K, In<uint8_t, 2> codes,
                     std::optional<In<float, 1>> scale, int zero_x2, std::optional<PyGroups> groups,
                     const std::vector<int>& levels) {
    PyWeight w{{}, codes, scale};
    w.weight.format = layout_index(layout);
    const auto& f = all_tables().front()->formats[w.weight.format];
    require(M >= 0 && K >= 0 && M < (int64_t{1} << 31) && K < (int64_t{1} << 31),
            "M, K: must lie in 0..2^31 - 1");
    require(!f.integer || K <= kMaxIntegerK,
            "K: integer formats take at most 65536 input features");
    w.weight.M = M;
    w.weight.K = K;
    w.weight.padded_k = padded_k(f, K);
    w.weight.tiles = tile_count(f, M);
    w.weight.tile_bytes = tile_bytes(f, K);
    w.weight.zero_x2 = zero_x2;
    w.weight.codes = codes.data();
    require(static_cast<int64_t>(codes.shape(0)) == w.weight.tiles &&
                static_cast<int64_t>(codes.shape(1)) == w.weight.tile_bytes,
            "codes: shape does not fit M, K and the layout");
    require(!(scale && groups) && (f.integer ? scale || groups : !groups),
            "scale: integer layouts have one for each row or groups of them, float layouts for "
            "rows alone");
    require(!scale || f.rows, "scale: this layout has super-blocks alone");
    if (groups) {
        w.weight.groups = group_scales(*groups, w.weight, f);
        w.groups = std::get<0>(*groups);
    }
    if (scale) {
        require(static_cast<int64_t>(scale->shape(0)) == w.weight.tiles * f.tile_rows,
                "scale: needs one value per row of every tile");
        w.weight.scale = scale->data();
    }
    set_levels(w.weight, levels, f);
    w.mappings.add(w.weight.codes);
    w.mappings.add(w.weight.groups.data);
    w.mappings.require_whole();  // scales of rows were read from there before
    return w;
}

// Raw codes (integer layouts) or values, [M][K].
Out<float, 2> unpack(const PyWeight& w, const std::string& isa, const nb::int_& threads) {
    const auto& weight = w.weight;
    auto out = make_array<float, 2>({static_cast<size_t>(weight.M), static_cast<size_t>(weight.K)});
    const auto& kernels = table(isa);
    Pool& p = pool(threads);
    float* data = out.data();
    nb::gil_scoped_release release;
    parallel(p, weight.M, 16, [&](int64_t begin, int64_t end) {
        for (int64_t m = begin; m < end; ++m)
            kernels.formats[weight.format].row(
                {weight.codes, weight.tile_bytes, m, weight.K, data + m * weight.K, weight.levels});
    });
    w.mappings.require_whole();
    return out;
}

// Whether an array of packed codes, in tiles or in a checkpoint's layout, holds none above max_code.
bool codes_valid(const std::string& layout,
                 nb::ndarray<const uint8_t, nb::c_contig, nb::device::cpu> codes, int max_code,
                 const nb::int_& threads) {
    const auto valid = runnable_tables().back()->formats[layout_index(layout)].valid;
    if (!valid) return true;
    Pool& p = pool(threads);
    std::atomic<bool> all{true};
    const uint8_t* data = codes.data();
    const auto bytes = static_cast<int64_t>(codes.size());
    nb::gil_scoped_release release;
    parallel(p, bytes, int64_t{1} << 20, [&](int64_t begin, int64_t end) {
        if (!valid(data + begin, end - begin, max_code)) all = false;
    });
    return all;
}

// Memory of results and scratch of single layers: fresh memory would take longer than most products.
const std::shared_ptr<SpareBuffers>& spare_memory() {
    // Arrays may outlive static objects when a process ends.
    static const auto& spare = *new std::shared_ptr(std::make_shared<SpareBuffers>());
    return spare;
}

// One linear layer on a pool, without a program; Program does the same with its operation.
class LinearRun {
  public:
    LinearRun(const KernelTable& kernels, Pool& pool, const Weight& weight, const LinearArgs& args,
              bool fast)
        : pool_(pool), args_(args) {
        const auto& format = kernels.formats[weight.format];
        args_.reading = pool.readings().of(format.read_loop);
        linear_ = fast ? format.fast.linear : format.linear;
        const auto bytes = fast ? format.fast.scratch_bytes : format.scratch_bytes;
        args_.joint_tokens = weight.joint_tokens;
        least_ = least_tiles(format, weight.joint_tokens, args.n);
        int64_t needed = bytes(args.K, args.n);
        if (is_joint(format, weight.joint_tokens, args.n))
            needed = std::max(needed, format.joint_scratch(args.n));
        stride_ = (needed + 8191) / 4096 * 4096;
        scratch_ = spare_memory()->take(static_cast<size_t>(stride_ * pool.size()));
    }
    ~LinearRun() { spare_memory()->give(std::move(scratch_)); }
    LinearRun(const LinearRun&) = delete;
    LinearRun& operator=(const LinearRun&) = delete;

    void run() {
        HandOut hand_out(pool_.size());
        pool_.run([&](int worker) { work(worker, hand_out); });
    }
    // One worker's share of the tiles.
    void work(int worker, HandOut& hand_out) const { work(worker, hand_out, args_); }
    // Takes another weight of the same shape.
    void work(int worker, HandOut& hand_out, const Weight& weight) const {
        LinearArgs args = args_;
        args.codes = weight.codes;
        args.levels = weight.levels;
        args.scale = weight.scale;
        args.groups = weight.groups;
        work(worker, hand_out, args);
    }

  private:
    void work(int worker, HandOut& hand_out, LinearArgs part) const {
        part.scratch = scratch_.data() + worker * stride_;
        const Division tiles =
            divide_tiles(args_.tile_end, args_.n, pool_.size(), args_.reading, least_);
        for (; hand_out.next(tiles, worker, part.tile_begin, part.tile_end);
             part.scratch_ready = true)
            linear_(part);
    }

    void (*linear_)(const LinearArgs&);
    Pool& pool_;
    LinearArgs args_;
    int64_t stride_, least_;
    HugeBuffer scratch_;
};

// Whether the unit's fast arithmetic is asked for and there for this format.
bool use_fast(const KernelTable& kernels, const Weight& weight, bool deterministic) {
    return !deterministic && kernels.formats[weight.format].fast.linear;
}

// One call of `linear`: rows are rounded and multiplied some at a time, so that what is kept between both stays in a
// core's cache, and is never so much that the system would have to clear memory for it.
class LinearCall {
  public:
    LinearCall(const PyWeight& w, const std::string& isa, Pool& pool, bool deterministic)
        : weight_(w.weight),
          kernels_(table(isa)),
          fast_(use_fast(kernels_, weight_, deterministic)),
          integer_(kernels_.formats[weight_.format].integer),
          pool_(pool) {}

    static constexpr int64_t kFine = -1, kBadInput = -2;

    // y [N, M] = x [N, K] W^T, activations quantised per row for integer layouts. kFine, or of those that round x:
    // kBadInput where it is not finite, or the place of the first element of y that is not.
    int64_t run(const float* x, int64_t N, float* y) const {
        constexpr int64_t kMostRows = 1024, kLeastRows = 128, kBytes = int64_t{1} << 20;
        const int64_t width = padded_width(weight_.K),
                      fitting = kBytes / std::max<int64_t>(width, 1);
        const int64_t rows = std::clamp(fitting / 16 * 16, kLeastRows, kMostRows);
        for (int64_t first = 0; first < N; first += rows) {
            const int n = static_cast<int>(std::min(rows, N - first));
            float* out = y + first * weight_.M;
            if (!block(x + first * weight_.K, n, out)) return kBadInput;
            if (!integer_) continue;
            const int64_t bad = first_not_finite(out, n);
            if (bad != kFine) return first * weight_.M + bad;
        }
        return kFine;
    }

  private:
    bool block(const float* x, int n, float* y) const {
        const FastKernels& fast = kernels_.formats[weight_.format].fast;
        const int x_block = kernels_.x_block(n);
        // Floats are read and outputs written where they are, unless kernels want them padded.
        const bool copy_x = !integer_ && weight_.K % kPad != 0, copy_y = weight_.M % kRowBlock != 0;
        Activations input(weight_.K), output(weight_.M);
        if (copy_x) input.reserve_floats(n);
        if (integer_) input.reserve_codes(n);
        input.reserve_planes(n, fast_ ? fast.x_planes : 0);
        if (copy_y) output.reserve_floats(n);
        LinearArgs args = linear_args(weight_, input, n, x_block, output);
        if (!copy_x) args.xf = x;  // which is as wide as rows of floats are
        if (!copy_y) args.outputs = {y, weight_.M};
        std::atomic<bool> finite{true};
        if (integer_ || copy_x || fast_) {
            each_row(n, [&](int64_t i) {
                const float* row = x + i * weight_.K;
                if (integer_ || copy_x) {
                    RowwiseArgs r{};
                    r.x = row;
                    r.width = weight_.K;
                    // Without a norm nothing is written where input and result are one.
                    r.yf = copy_x ? input.row(i) : const_cast<float*>(row);
                    if (integer_) input.quantize_into(r, i, x_block, weight_.x_group_k());
                    if (!kernels_.rowwise(r)) finite = false;
                }
                if (fast_)
                    kernels_.to_bf16_planes(
                        input.bf16_planes_args(args.xf + i * args.ldx, i, fast));
            });
        }
        if (!finite) return false;
        LinearRun(kernels_, pool_, weight_, args, fast_).run();
        if (copy_y) {
            each_row(n,
                     [&](int64_t i) { std::copy_n(output.row(i), weight_.M, y + i * weight_.M); });
        }
        return true;
    }

    int64_t first_not_finite(const float* y, int n) const {
        const int64_t count = n * weight_.M;
        std::atomic<bool> all{true};
        constexpr int64_t kPart = 1 << 15;  // which takes one thread as long as waking another
        if (count <= kPart) {
            all = !any_has_exponent(y, count, sizeof(float), kFloatExponent);
        } else {
            parallel(pool_, count, kPart, [&](int64_t begin, int64_t end) {
                if (any_has_exponent(y + begin, end - begin, sizeof(float), kFloatExponent))
                    all = false;
            });
        }
        if (all) return kFine;
        return std::find_if(y, y + count, [](float v) { return !std::isfinite(v); }) - y;
    }

    // Rows of a block of a matrix unit lie in common cache lines.
    template <class F>
    void each_row(int n, F f) const {
        parallel(pool_, n, n >= 16 * pool_.size() ? 16 : 1, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) f(i);
        });
    }

    const Weight& weight_;
    const KernelTable& kernels_;
    bool fast_, integer_;
    Pool& pool_;
};

// y [N, M] = x [N, K] W^T. FloatingPointError, and OverflowError(place, value, M) of y, as LinearCall::run says.
Out<float, 2> linear(const PyWeight& w, In<float, 2> x, const std::string& isa,
                     const nb::int_& threads, bool deterministic) {
    const LinearCall call(w, isa, pool(threads), deterministic);
    require(static_cast<int64_t>(x.shape(1)) == w.weight.K, "x: last dimension must be K");
    const auto N = static_cast<int64_t>(x.shape(0));
    require(N < int64_t{1} << 31, "x: takes at most 2^31 - 1 rows");
    auto out = lend_array<float, 2>(spare_memory(),
                                    {static_cast<size_t>(N), static_cast<size_t>(w.weight.M)});
    int64_t place;
    {
        nb::gil_scoped_release release;
        place = call.run(x.data(), N, out.data());
        w.mappings.require_whole();
    }
    if (place == LinearCall::kBadInput) throw std::domain_error("x");
    if (place != LinearCall::kFine) {
        const nb::tuple found = nb::make_tuple(place, out.data()[place], w.weight.M);
        PyErr_SetObject(PyExc_OverflowError, found.ptr());
        throw nb::python_error();
    }
    return out;
}

// Seconds of one layer on average, for each of `rounds` passes over all weights, as a model runs
// them: activations quantised before, dynamic chunks, a barrier between two layers.
std::vector<double> time_linear(const std::vector<const PyWeight*>& weights, int n,
                                const std::string& isa, const nb::int_& threads, int rounds,
                                bool deterministic) {
    require(!weights.empty() && n >= 1 && rounds >= 1,
            "time_linear: needs weights, n >= 1 and rounds >= 1");
    const auto& first = weights.front()->weight;
    for (const auto* w : weights)
        require(w->weight.M == first.M && w->weight.K == first.K &&
                    w->weight.format == first.format &&
                    w->weight.groups.group_k == first.groups.group_k &&
                    w->weight.x_group_k() == first.x_group_k(),
                "weights: must have the same shape, layout and groups");
    const auto& kernels = table(isa);
    Pool& p = pool(threads);
    nb::gil_scoped_release release;
    Activations x(first.K), y(first.M);
    const bool fast = use_fast(kernels, first, deterministic);
    const FastKernels& bf16 = kernels.formats[first.format].fast;
    x.reserve(n, fast ? bf16.x_planes : 0);
    y.reserve(n);
    std::vector<float> row(static_cast<size_t>(first.K));
    for (int i = 0; i < n; ++i) {
        for (size_t k = 0; k < row.size(); ++k)  // a few hundred distinct values
            row[k] = static_cast<float>((k * 37 + static_cast<size_t>(i) * 11) % 255) - 127.0f;
        RowwiseArgs r{};
        r.x = row.data();
        r.width = first.K;
        r.yf = x.row(i);
        if (kernels.formats[first.format].integer)
            x.quantize_into(r, i, kernels.x_block(n), first.x_group_k());
        kernels.rowwise(r);
        if (fast) kernels.to_bf16_planes(x.bf16_planes_args(i, bf16));
    }
    LinearRun layer(kernels, p, first, linear_args(first, x, n, kernels.x_block(n), y), fast);
    HandOut hand_outs[2] = {HandOut(p.size()), HandOut(p.size())};  // in turn
    std::vector<double> seconds;
    Barrier& barrier = p.barrier();
    for (int round = 0; round < rounds; ++round) {
        for (auto& hand_out : hand_outs) hand_out.reset();
        const auto begin = std::chrono::steady_clock::now();
        p.run([&](int worker) {
            for (size_t i = 0; i < weights.size(); ++i) {
                hand_outs[(i + 1) % 2].reset(worker);
                layer.work(worker, hand_outs[i % 2], weights[i]->weight);
                barrier.arrive_and_wait();
            }
        });
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        seconds.push_back(took.count() / static_cast<double>(weights.size()));
    }
    return seconds;
}

// Whether any value has all exponent bits set (infinite or NaN).
bool has_non_finite(nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu> a, uint32_t exponent,
                    const nb::int_& threads) {
    require(a.itemsize() == 1 || a.itemsize() == 2 || a.itemsize() == 4,
            "a: must have elements of 1, 2 or 4 bytes");
    Pool& p = pool(threads);
    const auto* data = static_cast<const uint8_t*>(a.data());
    const size_t element = a.itemsize();
    std::atomic<bool> found{false};
    const auto size = static_cast<int64_t>(a.size());
    nb::gil_scoped_release release;
    parallel(p, size, int64_t{1} << 20, [&](int64_t begin, int64_t end) {
        const auto* values = data + static_cast<size_t>(begin) * element;
        if (any_has_exponent(values, end - begin, element, exponent)) found = true;
    });
    return found;
}

// Whether the lines of super-blocks, of `rows` values each (GroupScales), hold finite f16, `halves` lines of each block,
// and in the `singles` that follow signed bytes in these ranges, one after the other; none: any bytes.
bool super_scales_valid(In<uint8_t, 2> lines, int rows, int halves, int singles,
                        const std::vector<std::pair<int, int>>& ranges, const nb::int_& threads) {
    const int64_t bytes = int64_t{2 * halves + singles} * rows;
    require(rows > 0 && halves >= 0 && singles >= 0 && bytes > 0 &&
                lines.size() % static_cast<size_t>(bytes) == 0,
            "lines: must be whole blocks");
    const uint8_t* data = lines.data();
    Pool& p = pool(threads);
    std::atomic<bool> valid{true};
    const auto check = [&](const uint8_t* block) {
        int bad = 0;
        for (int i = 0; i < halves * rows; ++i) bad |= (block[2 * i + 1] & 0x7c) == 0x7c;
        block += 2 * halves * rows;
        for (size_t i = 0; !ranges.empty() && i < static_cast<size_t>(singles); ++i) {
            const auto [low, high] = ranges[i % ranges.size()];
            const auto* line =
                reinterpret_cast<const int8_t*>(block) + i * static_cast<size_t>(rows);
            for (int r = 0; r < rows; ++r) bad |= (line[r] < low) | (line[r] > high);
        }
        return bad == 0;
    };
    const auto blocks = static_cast<int64_t>(lines.size()) / bytes;
    nb::gil_scoped_release release;
    parallel(p, blocks, 64, [&](int64_t begin, int64_t end) {
        for (int64_t b = begin; b < end; ++b)
            if (!check(data + b * bytes)) valid = false;
    });
    return valid;
}

}  // namespace

void bind_weights(nb::module_& m) {
    m.def("codes_valid", &codes_valid, "layout"_a, "codes"_a, "max_code"_a, "threads"_a);
    m.def("unpack", &unpack, "weight"_a, "isa"_a, "threads"_a);
    m.def("linear", &linear, "weight"_a, "x"_a, "isa"_a, "threads"_a, "deterministic"_a = true);
    m.def("time_linear", &time_linear, "weights"_a, "n"_a, "isa"_a, "threads"_a, "rounds"_a,
          "deterministic"_a = true);
    m.def("super_scales_valid", &super_scales_valid, "lines"_a, "rows"_a, "halves"_a, "singles"_a,
          "ranges"_a, "threads"_a);
    m.def("has_non_finite", &has_non_finite, "a"_a, "exponent"_a, "threads"_a);
    nb::class_<PyWeight>(m, "Weight")
        .def(
            "__init__",
            [](PyWeight* self, const std::string& layout, int64_t M, int64_t K,
               In<uint8_t, 2> codes, std::optional<In<float, 1>> scale, int zero_x2,
               std::optional<PyGroups> groups, const std::vector<int>& levels) {
                new (self) PyWeight(make_weight(layout, M, K, std::move(codes), std::move(scale),
                                                zero_x2, std::move(groups), levels));
            },
            "layout"_a, "M"_a, "K"_a, "codes"_a, "scale"_a.none(), "zero_x2"_a,
            "groups"_a.none() = nb::none(), "levels"_a = std::vector<int>{})
        .def_prop_rw(
            "direct_tokens", [](const PyWeight& w) { return w.weight.direct_tokens; },
            [](PyWeight& w, int most) {
                require(most >= 0 && most <= kFewTokens, "direct_tokens: must lie in 0..16");
                w.weight.direct_tokens = most;
            })
        .def_prop_rw(
            "joint_tokens", [](const PyWeight& w) { return w.weight.joint_tokens; },
            [](PyWeight& w, int fewest) {
                require(!fewest || (fewest >= kFewestJointTokens && w.weight.scale &&
                                    w.weight.zero_x2 == 2),
                        "joint_tokens: must be 0, or 8 and more for ternary weights with a scale "
                        "for each row");
                w.weight.joint_tokens = fewest;
            })
        .def_prop_rw(
            "tile_tokens", [](const PyWeight& w) { return w.weight.tile_tokens; },
            [](PyWeight& w, int fewest) {
                require(fewest >= 0 && fewest <= kMostVectorTokens + 1,
                        "tile_tokens: must lie in 0..256");
                w.weight.tile_tokens = fewest;
            });
}

}  // namespace sterna::border
