// The border: the only file that knows Python. It checks every argument, so that nothing below has
// to, and drops the GIL around everything that takes time.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "cpu.h"
#include "dispatch.h"
#include "fpenv.h"
#include "measure.h"
#include "memory.h"
#include "pool.h"
#include "program.h"
#include "sampler.h"
#include "scalar_math.h"
#include "topology.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace sterna;

namespace {

template <class T, int kDims>
using In = nb::ndarray<const T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;
template <class T, int kDims>
using Out = nb::ndarray<nb::numpy, T, nb::ndim<kDims>>;

void require(bool ok, const char* what) {
    if (!ok) throw std::invalid_argument(what);
}

// A new numpy array in huge pages; its memory goes when the last view of it does.
template <class T, size_t kDims>
Out<T, kDims> make_array(const size_t (&shape)[kDims]) {
    size_t bytes = sizeof(T);
    for (size_t s : shape)
        if (__builtin_mul_overflow(bytes, s, &bytes)) throw std::bad_alloc();
    auto* buffer = new HugeBuffer(bytes);
    nb::capsule owner(buffer, [](void* p) noexcept { delete static_cast<HugeBuffer*>(p); });
    void* data = buffer->data() ? static_cast<void*>(buffer->data()) : static_cast<void*>(buffer);
    return Out<T, kDims>(data, kDims, shape, owner);
}

// How often each unit was chosen: units give the same bits, so only this shows which one ran.
std::atomic<int64_t> kernel_calls[64];

const KernelTable& table(const std::string& isa) {
    const auto* t = find_table(isa);
    require(t, "isa: must be the name of a runnable unit");
    ++kernel_calls[t->rank];
    return *t;
}

Pool& pool(int threads) {
    require(threads >= 1 && threads <= 1024, "threads: must lie in 1..1024");
    return shared_pool(threads);
}

int layout_index(const std::string& layout) {
    const int i = format_index(layout);
    require(i >= 0, "layout: unknown code layout");
    return i;
}

int64_t padded_k(const FormatKernels& f, int64_t K) {
    const int64_t to = f.integer ? kPad : f.step_k;
    return (K + to - 1) / to * to;
}

int64_t tile_bytes(const FormatKernels& f, int64_t K) {
    return padded_k(f, K) / f.step_k * f.step_bytes;
}

int64_t tile_count(int64_t M) { return (M + kTileRows - 1) / kTileRows; }

// Runs f(begin, end) over [0, total) on a pool.
template <class F>
void parallel(Pool& p, int64_t total, int64_t chunk, F f) {
    std::atomic<int64_t> next{0};
    p.run([&](int) {
        for (int64_t i; (i = next.fetch_add(chunk)) < total;) f(i, std::min(total, i + chunk));
    });
}

// ------------------------------------------------------------------------------------- weights

// A packed matrix with the arrays that keep its memory alive.
struct PyWeight {
    Weight weight;
    In<uint8_t, 2> codes;
    std::optional<In<float, 1>> scale;
};

PyWeight make_weight(const std::string& layout, int64_t M, int64_t K, In<uint8_t, 2> codes,
                     std::optional<In<float, 1>> scale, int z2) {
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
    w.weight.tiles = tile_count(M);
    w.weight.tile_bytes = tile_bytes(f, K);
    w.weight.z2 = z2;
    w.weight.codes = codes.data();
    require(static_cast<int64_t>(codes.shape(0)) == w.weight.tiles &&
                static_cast<int64_t>(codes.shape(1)) == w.weight.tile_bytes,
            "codes: shape does not fit M, K and the layout");
    require(f.integer == scale.has_value(), "scale: integer layouts have one, float layouts none");
    if (scale) {
        require(static_cast<int64_t>(scale->shape(0)) == w.weight.tiles * kTileRows,
                "scale: needs one value per row of every tile");
        w.weight.scale = scale->data();
    }
    return w;
}

Out<uint8_t, 2> pack(const std::string& layout, const std::string& source,
                     nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu> data, int64_t M, int64_t K,
                     int level_offset, int level_step, int threads) {
    const int format = layout_index(layout);
    const auto& f = all_tables().front()->formats[format];
    PackArgs a{};
    int64_t rows = M;
    size_t element = 1;
    if (source == "levels") {
        a.kind = SourceKind::kLevels;
    } else if (source == "bitnet") {
        a.kind = SourceKind::kBitnet;
        require(M % 4 == 0, "M: BitNet packing holds four rows in one");
        rows = M / 4;
    } else if (source == "f32") {
        a.kind = SourceKind::kF32;
        element = 4;
    } else {
        require(source == "half", "source: must be levels, bitnet, f32 or half");
        a.kind = SourceKind::kHalf;
        element = 2;
    }
    require(f.integer == (element == 1) && (f.integer || (layout == "f32") == (element == 4)),
            "source: does not fit the layout");
    require(data.itemsize() == element, "data: element size does not fit the source");
    require(static_cast<int64_t>(data.shape(0)) == rows && static_cast<int64_t>(data.shape(1)) == K,
            "data: shape does not fit M and K");
    require(data.size() == 0 || K == 1 || data.stride(1) == 1, "data: rows must be contiguous");
    require(level_step >= 1, "level_step: must be at least 1");
    a.source = data.data();
    a.M = M;
    a.K = K;
    a.ld = data.shape(0) > 1 ? data.stride(0) : K;
    a.level_offset = level_offset;
    a.level_step = level_step;
    a.tile_bytes = tile_bytes(f, K);
    auto out = make_array<uint8_t, 2>(
        {static_cast<size_t>(tile_count(M)), static_cast<size_t>(a.tile_bytes)});
    a.codes = out.data();
    const auto* kernels = runnable_tables().back();
    Pool& p = pool(threads);
    nb::gil_scoped_release release;
    parallel(p, tile_count(M), 1, [&](int64_t begin, int64_t end) {
        PackArgs part = a;
        part.tile_begin = begin;
        part.tile_end = end;
        kernels->formats[format].pack(part);
    });
    return out;
}

// Raw codes (integer layouts) or values, [M][K].
Out<float, 2> unpack(const PyWeight& w, const std::string& isa, int threads) {
    const auto& weight = w.weight;
    auto out = make_array<float, 2>({static_cast<size_t>(weight.M), static_cast<size_t>(weight.K)});
    const auto& kernels = table(isa);
    Pool& p = pool(threads);
    float* data = out.data();
    nb::gil_scoped_release release;
    parallel(p, weight.M, 16, [&](int64_t begin, int64_t end) {
        for (int64_t m = begin; m < end; ++m)
            kernels.formats[weight.format].row(
                {weight.codes, weight.tile_bytes, m, weight.K, data + m * weight.K});
    });
    return out;
}

// Whether an array of packed codes, in tiles or in a checkpoint's layout, holds only valid ones.
bool codes_valid(const std::string& layout, nb::ndarray<const uint8_t, nb::c_contig, nb::device::cpu> codes,
                 int z2, int threads) {
    const auto valid = runnable_tables().back()->formats[layout_index(layout)].valid;
    if (!valid) return true;
    Pool& p = pool(threads);
    std::atomic<bool> all{true};
    const uint8_t* data = codes.data();
    const auto bytes = static_cast<int64_t>(codes.size());
    nb::gil_scoped_release release;
    parallel(p, bytes, int64_t{1} << 20, [&](int64_t begin, int64_t end) {
        if (!valid(data + begin, end - begin, z2)) all = false;
    });
    return all;
}

// y [N, M] = x [N, K] W^T, activations quantised per row for integer layouts.
Out<float, 2> linear(const PyWeight& w, In<float, 2> x, const std::string& isa, int threads) {
    const auto& weight = w.weight;
    const auto& kernels = table(isa);
    Pool& p = pool(threads);
    require(static_cast<int64_t>(x.shape(1)) == weight.K, "x: last dimension must be K");
    const auto N = static_cast<int64_t>(x.shape(0));
    const bool integer = kernels.formats[weight.format].integer;
    const int64_t ld = (weight.K + kPad - 1) / kPad * kPad, ldy = weight.tiles * kTileRows;
    auto out = make_array<float, 2>({static_cast<size_t>(N), static_cast<size_t>(weight.M)});
    float* y = out.data();
    const float* source = x.data();
    bool finite = true;
    {
        nb::gil_scoped_release release;
        HugeBuffer xf(static_cast<size_t>(N * ld * 4)), xq(static_cast<size_t>(N * ld));
        HugeBuffer scale(static_cast<size_t>(N * 4)), sum(static_cast<size_t>(N * 4));
        HugeBuffer padded_y(static_cast<size_t>(N * ldy * 4));
        LinearArgs a{};
        a.codes = weight.codes;
        a.scale = weight.scale;
        a.tile_bytes = weight.tile_bytes;
        a.K = weight.padded_k;
        a.z2 = weight.z2;
        a.xq = reinterpret_cast<int8_t*>(xq.data());
        a.x_scale = reinterpret_cast<float*>(scale.data());
        a.x_sum = reinterpret_cast<int32_t*>(sum.data());
        a.xf = reinterpret_cast<float*>(xf.data());
        a.ldx = ld;
        a.n = static_cast<int>(N);
        a.y = reinterpret_cast<float*>(padded_y.data());
        a.ldy = ldy;
        std::atomic<bool> all_finite{true};
        parallel(p, N, 1, [&](int64_t begin, int64_t end) {
            for (int64_t n = begin; n < end; ++n) {
                RowwiseArgs r{};
                r.x = source + n * weight.K;
                r.width = weight.K;
                r.yf = const_cast<float*>(a.xf) + n * ld;
                r.yq = integer ? const_cast<int8_t*>(a.xq) + n * ld : nullptr;
                r.x_scale = const_cast<float*>(a.x_scale) + n;
                r.x_sum = const_cast<int32_t*>(a.x_sum) + n;
                if (!kernels.rowwise(r)) all_finite = false;
            }
        });
        finite = all_finite;
        if (finite && N > 0)
            parallel(p, weight.tiles, 1, [&](int64_t begin, int64_t end) {
                LinearArgs part = a;
                part.tile_begin = begin;
                part.tile_end = end;
                kernels.formats[weight.format].linear(part);
            });
        for (int64_t n = 0; n < N; ++n) std::copy_n(a.y + n * ldy, weight.M, y + n * weight.M);
    }
    if (!finite) throw std::domain_error("x");
    return out;
}

// Whether any value has all exponent bits set (infinite or NaN).
bool has_non_finite(nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu> a, uint32_t exponent) {
    nb::gil_scoped_release release;
    bool bad = false;
    if (a.itemsize() == 2) {
        const auto* p = static_cast<const uint16_t*>(a.data());
        const auto mask = static_cast<uint16_t>(exponent);
        for (size_t i = 0; i < a.size(); ++i) bad |= (p[i] & mask) == mask;
    } else {
        require(a.itemsize() == 4, "a: must have 2- or 4-byte elements");
        const auto* p = static_cast<const uint32_t*>(a.data());
        for (size_t i = 0; i < a.size(); ++i) bad |= (p[i] & exponent) == exponent;
    }
    return bad;
}

// ------------------------------------------------------------------------------------- program

struct PyProgram {
    Program program;
    std::vector<nb::object> keep;  // the arrays behind the weights
    int n_buffers = 0, n_weights = 0;
    std::vector<Weight> weights;
    int64_t vocab = 0;
    std::mutex mutex;  // one run at a time: the buffers are shared

    explicit PyProgram(Program::Rope rope) : program(std::move(rope)) {}
};

int checked(int index, int count, const char* what) {
    require(index >= 0 && index < count, what);
    return index;
}

void add_rowwise(PyProgram& p, const std::string& name, int src, int dst, int64_t width,
                 const std::string& glu, int64_t up_offset, std::optional<In<float, 1>> norm,
                 float eps, bool quantize, bool selected) {
    Op op{OpKind::kRowwise, name};
    op.src = checked(src, p.n_buffers, "src: no such buffer");
    op.dst = checked(dst, p.n_buffers, "dst: no such buffer");
    op.width = width;
    op.up_offset = up_offset;
    require(glu.empty() || glu == "relu2" || glu == "silu", "glu: must be relu2, silu or empty");
    op.glu = glu.empty() ? Glu::kNone : glu == "relu2" ? Glu::kRelu2 : Glu::kSilu;
    if (norm) {
        require(static_cast<int64_t>(norm->shape(0)) == width, "norm: must have `width` values");
        op.norm.assign(norm->data(), norm->data() + norm->shape(0));
    }
    op.eps = eps;
    op.quantize = quantize;
    op.selected = selected;
    p.program.add_op(std::move(op));
}

struct PyBatch {
    std::vector<SequenceSpan> spans;
    std::vector<In<int32_t, 1>> pages;
};

PyBatch make_batch(const PyProgram& p, const KvCache& cache, const In<int32_t, 1>& tokens,
                   const std::vector<std::tuple<int, int, int, In<int32_t, 1>>>& sequences) {
    PyBatch batch;
    int64_t total = 0;
    for (const auto& [start, count, logits, pages] : sequences) {
        require(start >= 0 && count >= 1 && logits >= 0 && logits <= count,
                "sequences: needs start >= 0, count >= 1, 0 <= logits <= count");
        require((static_cast<int64_t>(start) + count + kPagePositions - 1) / kPagePositions <=
                    static_cast<int64_t>(pages.shape(0)),
                "sequences: the page table is too short");
        for (size_t i = 0; i < pages.shape(0); ++i)
            require(pages.data()[i] >= 0 && pages.data()[i] < cache.pages, "pages: no such page");
        batch.spans.push_back({start, count, pages.data(), logits});
        batch.pages.push_back(pages);
        total += count;
    }
    require(total == static_cast<int64_t>(tokens.shape(0)) && total > 0,
            "tokens: must be as many as the sequences count, at least one");
    for (size_t i = 0; i < tokens.shape(0); ++i)
        require(tokens.data()[i] >= 0 && tokens.data()[i] < p.vocab,
                "tokens: id outside the vocabulary");
    return batch;
}

Out<float, 2> run(PyProgram& p, KvCache& cache, In<int32_t, 1> tokens,
                  const std::vector<std::tuple<int, int, int, In<int32_t, 1>>>& sequences,
                  const std::string& isa, int threads) {
    const auto batch = make_batch(p, cache, tokens, sequences);
    const auto& rope = p.program.rope();
    require(cache.kv_heads == rope.n_kv_heads && cache.head_dim == rope.head_dim,
            "cache: does not fit the program");
    size_t rows = 0;
    for (const auto& s : batch.spans) rows += static_cast<size_t>(s.logits);
    const auto& kernels = table(isa);
    Pool& workers = pool(threads);
    auto out = make_array<float, 2>({rows, static_cast<size_t>(p.vocab)});
    nb::gil_scoped_release release;
    const std::lock_guard lock(p.mutex);
    const Batch native{{tokens.data(), tokens.shape(0)}, batch.spans};
    const float* logits = p.program.run(native, cache, kernels, workers);
    for (size_t r = 0; r < rows; ++r)
        std::copy_n(logits + static_cast<int64_t>(r) * p.program.logits_ld(), p.vocab,
                    out.data() + r * static_cast<size_t>(p.vocab));
    return out;
}

std::vector<float> inverse_frequencies(double theta, int dim) {
    std::vector<float> f;
    for (int i = 0; i < dim / 2; ++i)
        f.push_back(static_cast<float>(math::pow_d(theta, -2.0 * i / dim)));
    return f;
}

double peak_gops(const std::string& isa, int threads) {
    const auto& kernels = table(isa);
    Pool& p = pool(threads);
    nb::gil_scoped_release release;
    double best = 0;
    for (int repeat = 0; repeat < 5; ++repeat) {
        std::atomic<int64_t> done{0};
        const auto begin = std::chrono::steady_clock::now();
        p.run([&](int) { done += kernels.peak(int64_t{2'000'000'000}); });
        const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
        best = std::max(best, static_cast<double>(done) / time.count() / 1e9);
    }
    return best;
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Sterna's native core. Private: sterna's Python modules are the interface.";
    nb::register_exception_translator([](const std::exception_ptr& p, void*) {
        try {
            std::rethrow_exception(p);
        } catch (const std::domain_error& e) {  // an activation was not finite: e names the place
            PyErr_SetString(PyExc_FloatingPointError, e.what());
        }
    });

    m.attr("page_positions") = kPagePositions;
    m.attr("tile_rows") = kTileRows;
    m.attr("max_integer_k") = kMaxIntegerK;
    m.def("cpu_info", [] {
        const auto& c = cpu_info();
        nb::dict d;
        d["vendor"] = c.vendor;
        d["model"] = c.model;
        d["features"] = c.features;
        d["family"] = c.family;
        d["model_id"] = c.model_id;
        d["stepping"] = c.stepping;
        return d;
    });
    m.def("topology", [] {
        const auto t = topology();
        nb::dict d;
        d["allowed_cpus"] = t.allowed_cpus;
        d["allowed_cores"] = t.allowed_cores;
        d["cpu_quota"] = t.cpu_quota;
        return d;
    });
    m.def("isas", [] {
        std::vector<std::string> names;
        for (const auto* t : runnable_tables()) names.emplace_back(t->isa);
        return names;
    });
    m.def("known_isas", [] {
        std::vector<std::pair<std::string, std::string>> names;
        for (const auto* t : all_tables()) names.emplace_back(t->isa, t->needs);
        return names;
    });
    m.def("layouts", [] {
        std::vector<std::string> names;
        const auto* t = all_tables().front();
        for (int i = 0; i < t->n_formats; ++i) names.emplace_back(t->formats[i].name);
        return names;
    });
    m.def("kernel_calls", [] {
        nb::dict calls;
        for (const auto* t : all_tables()) calls[t->isa] = kernel_calls[t->rank].load();
        return calls;
    });
    m.def("default_threads", &default_threads);
    m.def("alloc", [](size_t nbytes) { return make_array<uint8_t, 1>({nbytes}); }, "nbytes"_a);
    m.def(
        "tile_bytes",
        [](const std::string& layout, int64_t K) {
            return tile_bytes(all_tables().front()->formats[layout_index(layout)], K);
        },
        "layout"_a, "K"_a);
    m.def("pack", &pack, "layout"_a, "source"_a, "data"_a, "M"_a, "K"_a, "level_offset"_a,
          "level_step"_a, "threads"_a);
    m.def("codes_valid", &codes_valid, "layout"_a, "codes"_a, "z2"_a, "threads"_a);
    m.def("unpack", &unpack, "weight"_a, "isa"_a, "threads"_a);
    m.def("linear", &linear, "weight"_a, "x"_a, "isa"_a, "threads"_a);
    m.def("has_non_finite", &has_non_finite, "a"_a, "exponent"_a);
    m.def("inverse_frequencies", &inverse_frequencies, "theta"_a, "dim"_a);
    m.def(
        "bandwidth_gb_s",
        [](int threads, size_t nbytes) {
            Pool& p = pool(threads);
            (void)p;
            nb::gil_scoped_release release;
            return bandwidth_gb_s(threads, nbytes);
        },
        "threads"_a, "nbytes"_a);
    m.def("peak_gops", &peak_gops, "isa"_a, "threads"_a);

    nb::class_<PyWeight>(m, "Weight")
        .def(
            "__init__",
            [](PyWeight* self, const std::string& layout, int64_t M, int64_t K,
               In<uint8_t, 2> codes, std::optional<In<float, 1>> scale, int z2) {
                new (self)
                    PyWeight(make_weight(layout, M, K, std::move(codes), std::move(scale), z2));
            },
            "layout"_a, "M"_a, "K"_a, "codes"_a, "scale"_a.none(), "z2"_a)
        .def_prop_ro("nbytes",
                     [](const PyWeight& w) { return w.weight.tiles * w.weight.tile_bytes; });

    nb::class_<KvCache>(m, "KvCache")
        .def(
            "__init__",
            [](KvCache* self, int layers, int kv_heads, int head_dim, int pages, bool f16) {
                require(layers >= 1 && kv_heads >= 1 && head_dim >= 16 && head_dim % 16 == 0 &&
                            pages >= 1,
                        "cache: needs layers, kv_heads, pages >= 1 and head_dim a multiple of 16");
                new (self) KvCache(layers, kv_heads, head_dim, pages, f16);
            },
            "layers"_a, "kv_heads"_a, "head_dim"_a, "pages"_a, "f16"_a)
        .def_prop_ro("pages", [](const KvCache& c) { return c.pages; });

    nb::class_<PyProgram>(m, "Program")
        .def(
            "__init__",
            [](PyProgram* self, int n_heads, int n_kv_heads, int head_dim, bool interleaved,
               std::vector<float> inverse_frequencies) {
                require(n_heads >= 1 && n_kv_heads >= 1 && n_heads % n_kv_heads == 0 &&
                            head_dim >= 16 && head_dim % 16 == 0 &&
                            inverse_frequencies.size() == static_cast<size_t>(head_dim / 2),
                        "heads: n_heads must be a multiple of n_kv_heads, head_dim one of 16");
                new (self) PyProgram(
                    {n_heads, n_kv_heads, head_dim, interleaved, std::move(inverse_frequencies)});
            },
            "n_heads"_a, "n_kv_heads"_a, "head_dim"_a, "interleaved"_a, "inverse_frequencies"_a)
        .def(
            "buffer",
            [](PyProgram& p, int64_t width) {
                require(width >= 1, "width: must be at least 1");
                ++p.n_buffers;
                return p.program.add_buffer(width);
            },
            "width"_a)
        .def(
            "weight",
            [](PyProgram& p, nb::object weight) {
                const auto& w = nb::cast<const PyWeight&>(weight).weight;
                p.keep.push_back(weight);
                p.weights.push_back(w);
                ++p.n_weights;
                return p.program.add_weight(w);
            },
            "weight"_a)
        .def(
            "embed",
            [](PyProgram& p, int weight, int dst) {
                Op op{OpKind::kEmbed, "embed_tokens"};
                op.weight = checked(weight, p.n_weights, "weight: no such weight");
                op.dst = checked(dst, p.n_buffers, "dst: no such buffer");
                p.vocab = p.weights[static_cast<size_t>(weight)].M;
                p.program.add_op(std::move(op));
            },
            "weight"_a, "dst"_a)
        .def(
            "select",
            [](PyProgram& p, int src, int dst) {
                Op op{OpKind::kSelect, "select"};
                op.src = checked(src, p.n_buffers, "src: no such buffer");
                op.dst = checked(dst, p.n_buffers, "dst: no such buffer");
                op.selected = true;
                p.program.add_op(std::move(op));
            },
            "src"_a, "dst"_a)
        .def("rowwise", &add_rowwise, "name"_a, "src"_a, "dst"_a, "width"_a, "glu"_a = "",
             "up_offset"_a = 0, "norm"_a.none() = nb::none(), "eps"_a = 0.0f, "quantize"_a = false,
             "selected"_a = false)
        .def(
            "linear",
            [](PyProgram& p, const std::string& name, int weight, int src, int dst, int residual,
               bool selected) {
                Op op{OpKind::kLinear, name};
                op.weight = checked(weight, p.n_weights, "weight: no such weight");
                op.src = checked(src, p.n_buffers, "src: no such buffer");
                op.dst = checked(dst, p.n_buffers, "dst: no such buffer");
                require(residual < p.n_buffers, "residual: no such buffer");
                op.residual = residual;
                op.selected = selected;
                p.program.add_op(std::move(op));
            },
            "name"_a, "weight"_a, "src"_a, "dst"_a, "residual"_a = -1, "selected"_a = false)
        .def(
            "rope",
            [](PyProgram& p, int qkv, int layer) {
                Op op{OpKind::kRope, "rope"};
                op.src = checked(qkv, p.n_buffers, "qkv: no such buffer");
                op.layer = layer;
                p.program.add_op(std::move(op));
            },
            "qkv"_a, "layer"_a)
        .def(
            "attention",
            [](PyProgram& p, int qkv, int dst, int layer) {
                Op op{OpKind::kAttention, "attention"};
                op.src = checked(qkv, p.n_buffers, "qkv: no such buffer");
                op.dst = checked(dst, p.n_buffers, "dst: no such buffer");
                op.layer = layer;
                p.program.add_op(std::move(op));
            },
            "qkv"_a, "dst"_a, "layer"_a)
        .def("run", &run, "cache"_a, "tokens"_a, "sequences"_a, "isa"_a, "threads"_a);

    nb::class_<SampleResult>(m, "SampleResult")
        .def_ro("token", &SampleResult::token)
        .def_ro("logprob", &SampleResult::logprob)
        .def_ro("top", &SampleResult::top)
        .def_ro("finite", &SampleResult::finite);
    m.def(
        "sample",
        [](In<float, 1> logits, float temperature, int top_k, float top_p, float min_p,
           float repetition_penalty, uint64_t seed, uint64_t sequence, int n_logprobs,
           In<int32_t, 1> history, uint64_t position) {
            nb::gil_scoped_release release;
            const FpEnvScope environment;
            const SampleParams params{temperature,        top_k, top_p,    min_p,
                                      repetition_penalty, seed,  sequence, n_logprobs};
            return sample(logits.data(), static_cast<int>(logits.shape(0)), params, history.data(),
                          static_cast<int>(history.shape(0)), position);
        },
        "logits"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "repetition_penalty"_a,
        "seed"_a, "sequence"_a, "n_logprobs"_a, "history"_a, "position"_a);
    m.def(
        "log_softmax_at",
        [](In<float, 2> logits, In<int32_t, 1> tokens) {
            require(logits.shape(0) == tokens.shape(0), "tokens: one per row of logits");
            const auto vocab = static_cast<int>(logits.shape(1));
            auto out = make_array<float, 1>({logits.shape(0)});
            for (size_t i = 0; i < tokens.shape(0); ++i)
                require(tokens.data()[i] >= 0 && tokens.data()[i] < vocab,
                        "tokens: id outside the vocabulary");
            nb::gil_scoped_release release;
            const FpEnvScope environment;
            for (size_t i = 0; i < tokens.shape(0); ++i)
                out.data()[i] = log_softmax_at(logits.data() + i * static_cast<size_t>(vocab),
                                               vocab, tokens.data()[i]);
            return out;
        },
        "logits"_a, "tokens"_a);
}
