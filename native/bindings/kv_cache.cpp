// Bindings of the KV cache, and of the timing of attention over one.
#include "attention/attention_timing.h"
#include "bindings/common.h"

namespace sterna::border {

namespace {

KvTypes kv_types(const std::string& name) {
    using enum KvType;
    if (name == "i16") return {kI16, kI16};
    if (name == "i8") return {kI8, kI8};
    if (name == "k8v4") return {kI8, kI4};
    if (name == "f16") return {kF16, kF16};
    require(name == "f32", "dtype: must be i16, i8, k8v4, f16 or f32");
    return {kF32, kF32};
}

}  // namespace

void bind_kv_cache(nb::module_& m) {
    m.def(
        "kv_bytes",
        [](int layers, int kv_heads, int head_dim, const std::string& dtype, bool keys_alone) {
            require(layers >= 0 && kv_heads >= 0 && head_dim >= 0 && head_dim <= kMaxHeadDim,
                    "kv_bytes: must not be negative, nor head_dim above 65,536");
            const KvTypes types = kv_types(dtype);
            const int padded = padded_head(head_dim);
            const int64_t values = keys_alone ? 0 : kv_head_bytes(types.values, padded);
            return int64_t{layers} * kv_heads * (kv_head_bytes(types.keys, padded) + values) /
                   kPagePositions;
        },
        "layers"_a, "kv_heads"_a, "head_dim"_a, "dtype"_a, "keys_alone"_a = false);
    nb::class_<KvCache>(m, "KvCache")
        .def(
            "__init__",
            [](KvCache* self, const std::vector<std::pair<int, int>>& layers, int pages,
               const std::string& dtype, const std::vector<bool>& windowed,
               const std::vector<bool>& keys_alone) {
                require(pages >= 1, "cache: needs pages");
                require((windowed.empty() || windowed.size() == layers.size()) &&
                            (keys_alone.empty() || keys_alone.size() == layers.size()),
                        "windowed, keys_alone: must be one for each layer, or none");
                std::vector<KvCache::Heads> heads;
                for (const auto& [kv_heads, head_dim] : layers) {
                    require(kv_heads >= 1 && head_dim >= 1 && head_dim <= kMaxHeadDim,
                            "cache: needs kv_heads >= 1 and head_dim in 1..65,536");
                    const bool alone = !keys_alone.empty() && keys_alone[heads.size()];
                    heads.push_back({kv_heads, head_dim, alone});
                }
                new (self) KvCache(heads, windowed, pages, kv_types(dtype));
            },
            "layers"_a, "pages"_a, "dtype"_a, "windowed"_a = std::vector<bool>(),
            "keys_alone"_a = std::vector<bool>())
        .def(
            "copy_page",
            [](KvCache& c, int from, int to) {
                require(from >= 0 && from < c.pages && to >= 0 && to < c.pages && from != to,
                        "pages: two different ones of the cache are needed");
                nb::gil_scoped_release release;
                c.copy_page(from, to);
            },
            "source"_a, "target"_a)
        .def(
            "read_page",
            [](const KvCache& c, int page, const Bytes& out, bool whole) {
                require(page >= 0 && page < c.pages, "page: one of the cache is needed");
                require(static_cast<int64_t>(out.size()) == c.page_nbytes(whole),
                        "out: must have the bytes of a page");
                nb::gil_scoped_release release;
                c.read_page(page, out.data(), whole);
            },
            "page"_a, "out"_a, "whole"_a = true)
        .def(
            "write_page",
            [](KvCache& c, int page, const In<uint8_t, 1>& data, bool whole) {
                require(page >= 0 && page < c.pages, "page: one of the cache is needed");
                require(static_cast<int64_t>(data.size()) == c.page_nbytes(whole),
                        "data: must have the bytes of a page");
                nb::gil_scoped_release release;
                c.write_page(page, data.data(), whole);
            },
            "page"_a, "data"_a, "whole"_a = true)
        .def(
            "release",
            [](KvCache& c, int first, int last, bool windowed) {
                require(first >= 0 && first <= last && last < c.pages,
                        "pages: the first and the last of some of the cache are needed");
                nb::gil_scoped_release release;
                c.release(first, last, windowed);
            },
            "first"_a, "last"_a, "windowed"_a)
        .def(
            "page_nbytes", [](const KvCache& c, bool whole) { return c.page_nbytes(whole); },
            "whole"_a = true)
        .def_prop_ro("pages", [](const KvCache& c) { return c.pages; });
    nb::class_<AttentionTimer>(m, "AttentionTimer")
        .def(
            "__init__",
            [](AttentionTimer* self, int kv_heads, int head_dim, int positions,
               const std::string& dtype) {
                require(kv_heads >= 1 && head_dim >= 1 && head_dim <= kMaxHeadDim &&
                            positions >= kPagePositions && positions % kPagePositions == 0,
                        "timer: needs kv_heads >= 1, head_dim in 1..65,536 and positions of whole "
                        "pages");
                new (self) AttentionTimer(kv_heads, head_dim, positions, kv_types(dtype));
            },
            "kv_heads"_a, "head_dim"_a, "positions"_a, "dtype"_a)
        .def(
            "seconds",
            [](const AttentionTimer& t, const std::string& isa, const nb::int_& threads,
               int queries_per_kv) {
                require(queries_per_kv >= 1 && queries_per_kv <= kMaxAttentionRows,
                        "queries_per_kv: must lie in 1..256");
                const auto& kernels = table(isa);
                Pool& p = pool(threads);
                nb::gil_scoped_release release;
                return t.seconds(kernels, p, queries_per_kv);
            },
            "isa"_a, "threads"_a, "queries_per_kv"_a)
        .def_prop_ro("bytes", &AttentionTimer::bytes);
}

}  // namespace sterna::border
