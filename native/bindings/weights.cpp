// Weights as Python sees them: packing, unpacking, one linear layer.
#include "bindings/common.h"

namespace sterna::border {

namespace {

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
bool codes_valid(const std::string& layout,
                 nb::ndarray<const uint8_t, nb::c_contig, nb::device::cpu> codes, int z2,
                 int threads) {
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
bool has_non_finite(nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu> a, uint32_t exponent,
                    int threads) {
    require(a.itemsize() == 2 || a.itemsize() == 4, "a: must have 2- or 4-byte elements");
    Pool& p = pool(threads);
    const void* data = a.data();
    const bool half = a.itemsize() == 2;
    std::atomic<bool> found{false};
    const auto scan = [&]<class T>(const T* values, T mask, int64_t begin, int64_t end) {
        T bad = 0;  // of the values' own width, so that the loop vectorises
        for (int64_t i = begin; i < end; ++i)
            bad = static_cast<T>(bad | ((values[i] & mask) == mask ? 1 : 0));
        if (bad) found = true;
    };
    const auto size = static_cast<int64_t>(a.size());
    nb::gil_scoped_release release;
    parallel(p, size, int64_t{1} << 20, [&](int64_t begin, int64_t end) {
        if (half) {
            scan(static_cast<const uint16_t*>(data), static_cast<uint16_t>(exponent), begin, end);
        } else {
            scan(static_cast<const uint32_t*>(data), exponent, begin, end);
        }
    });
    return found;
}

}  // namespace

void bind_weights(nb::module_& m) {
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
    m.def("has_non_finite", &has_non_finite, "a"_a, "exponent"_a, "threads"_a);
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
}

}  // namespace sterna::border
