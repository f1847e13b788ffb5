// Bindings of packing: rows of levels, words, or GGUF's blocks become a format's tiles.
#include "bindings/common.h"
#include "files/ggml_blocks.h"
#include "files/grids.h"

namespace sterna::border {

namespace {

using Rows = nb::ndarray<nb::ro, nb::ndim<2>, nb::device::cpu>;

// The places of the rows of all parts, in the order of `order` if there is one. BitNet's bytes hold one of the first
// M / 4 rows in their lowest bits, then one of the next M / 4, and so on.
std::vector<SourceRow> rows_of(const std::vector<Rows>& parts, size_t element, bool bitnet,
                               const std::optional<In<int64_t, 1>>& order) {
    require(!parts.empty(), "parts: must be one or more");
    const auto K = static_cast<int64_t>(parts.front().shape(1));
    std::vector<SourceRow> rows;
    for (const auto& part : parts) {
        require(part.itemsize() == element, "parts: element size does not fit the layout");
        require(static_cast<int64_t>(part.shape(1)) == K, "parts: must have the same K");
        require(part.size() == 0 || K == 1 || part.stride(1) == 1,
                "parts: rows must be contiguous");
        const auto* at = static_cast<const uint8_t*>(part.data());
        const auto ld = static_cast<int64_t>(element) * (part.shape(0) > 1 ? part.stride(0) : K);
        for (int field = 0; field < (bitnet ? 4 : 1); ++field)
            for (size_t i = 0; i < part.shape(0); ++i)
                rows.push_back({at + static_cast<int64_t>(i) * ld, 2 * field});
    }
    if (!order) return rows;
    require(order->shape(0) == rows.size(), "order: must name each row once");
    std::vector<SourceRow> ordered;
    for (size_t i = 0; i < rows.size(); ++i) {
        const int64_t from = order->data()[i];
        require(from >= 0 && from < static_cast<int64_t>(rows.size()), "order: no such row");
        ordered.push_back(rows[static_cast<size_t>(from)]);
    }
    return ordered;
}

void check_levels(int offset, int step) {
    require((step == 1 || step == 2) && offset >= 0 && offset < 256,
            "level_offset, level_step: must lie in 0..255 and 1..2");
}

// The rows of all parts as tiles. source: "levels" int8 [M][K], code = (level + level_offset) / level_step;
// "bitnet" uint8 [M / 4][K] of codes; "words" of a float format.
Out<uint8_t, 2> pack(const std::string& layout, const std::string& source,
                     const std::vector<Rows>& parts, int level_offset, int level_step,
                     const std::optional<In<int64_t, 1>>& order, const nb::int_& threads) {
    const int format = layout_index(layout);
    const auto& f = all_tables().front()->formats[format];
    const bool bitnet = source == "bitnet";
    require(bitnet || source == "levels" || source == "words",
            "source: must be levels, bitnet or words");
    require(f.integer == (source != "words"), "source: does not fit the layout");
    check_levels(level_offset, level_step);
    std::vector<SourceRow> rows =
        rows_of(parts, static_cast<size_t>(f.source_bytes), bitnet, order);
    PackArgs a{};
    a.M = static_cast<int64_t>(rows.size());
    a.K = static_cast<int64_t>(parts.front().shape(1));
    require(a.M < (int64_t{1} << 31) && a.K < (int64_t{1} << 31), "M, K: must lie in 0..2^31 - 1");
    if (!bitnet) {
        for (auto& row : rows) row.shift = level_step - 1;
        a.offset = static_cast<uint8_t>(level_offset);
    }
    a.mask = bitnet ? 3 : level_step == 2 ? 127 : 255;
    a.rows = rows.data();
    a.tile_bytes = tile_bytes(f, a.K);
    auto out = make_weight_array<uint8_t, 2>(
        {static_cast<size_t>(tile_count(f, a.M)), static_cast<size_t>(a.tile_bytes)});
    a.codes = out.data();
    const auto* kernels = runnable_tables().back();
    Pool& p = pool(threads);
    nb::gil_scoped_release release;
    parallel(p, tile_count(f, a.M), 1, [&](int64_t begin, int64_t end) {
        PackArgs part = a;
        part.tile_begin = begin;
        part.tile_end = end;
        kernels->formats[format].pack(part);
    });
    return out;
}

// The blocks of all parts, rows of bytes, as (codes, scales, bad): the tiles of their levels, the kernels' lines
// of their scales, `scale_tile_bytes` for each tile, and the first row that no format can hold, or -1.
std::tuple<Out<uint8_t, 2>, Out<uint8_t, 2>, int64_t> pack_ggml(
    const std::string& layout, const std::string& type, const std::vector<Rows>& parts,
    int level_offset, int level_step, const std::optional<In<int64_t, 1>>& order,
    int64_t scale_tile_bytes, const nb::int_& threads) {
    const int format = layout_index(layout);
    const auto& f = all_tables().front()->formats[format];
    const auto all = block_types();
    const auto found = std::ranges::find(all, type, [](const BlockType& t) { return t.name; });
    require(found != all.end(), "type: must be a type of blocks");
    check_levels(level_offset, level_step);
    require(f.integer && f.tile_bytes(2 * kSuperK) == 2 * f.tile_bytes(kSuperK),
            "layout: must be one of integers in steps");
    const std::vector<SourceRow> rows = rows_of(parts, 1, false, order);
    const auto M = static_cast<int64_t>(rows.size());
    const auto row_bytes = static_cast<int64_t>(parts.front().shape(1));
    require(row_bytes % found->bytes == 0, "parts: rows must be whole blocks");
    const int64_t blocks = row_bytes / found->bytes, K = blocks * found->k;
    require(M < (int64_t{1} << 31) && K < (int64_t{1} << 31), "M, K: must lie in 0..2^31 - 1");
    require(scale_tile_bytes >= blocks * found->scale_bytes * f.tile_rows &&
                scale_tile_bytes < int64_t{1} << 40,
            "scale_tile_bytes: must hold the scales of all blocks");
    const auto tiles = static_cast<size_t>(tile_count(f, M));
    auto codes = make_weight_array<uint8_t, 2>({tiles, static_cast<size_t>(tile_bytes(f, K))});
    auto scales = make_weight_array<uint8_t, 2>({tiles, static_cast<size_t>(scale_tile_bytes)});
    const BlockRows from{*found,
                         rows.data(),
                         M,
                         K,
                         level_offset,
                         level_step,
                         codes.data(),
                         tile_bytes(f, K),
                         scales.data(),
                         scale_tile_bytes};
    const auto& kernels = runnable_tables().back()->formats[format];
    Pool& p = pool(threads);
    int64_t bad;
    {
        nb::gil_scoped_release release;
        bad = pack_blocks(from, kernels, p);
    }
    return {codes, scales, bad};
}

// The entries of a table of IQ1, IQ2 or IQ3 in the order of files, as codes (grids.h).
template <class G>
Out<uint8_t, 2> entries(const G& grid) {
    constexpr size_t kWidth = sizeof grid.codes[0], kCount = sizeof grid.codes / kWidth;
    auto out = make_array<uint8_t, 2>({kCount, kWidth});
    for (uint32_t i = 0; i < kCount; ++i)
        std::memcpy(out.data() + i * kWidth, grid.codes[number_of(grid, i)], kWidth);
    return out;
}
Out<uint8_t, 2> grid_codes(const std::string& type) {
    if (type == "iq1_s" || type == "iq1_m") return entries(kIq1Grid);
    if (type == "iq2_xxs") return entries(kIq2XxsGrid);
    if (type == "iq2_xs") return entries(kIq2XsGrid);
    if (type == "iq2_s") return entries(kIq2SGrid);
    if (type == "iq3_xxs") return entries(kIq3XxsGrid);
    require(type == "iq3_s", "type: must be one of IQ1, IQ2 or IQ3");
    return entries(kIq3SGrid);
}

using LevelsOut = nb::ndarray<int8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void levels_of_i2s(In<uint8_t, 1> bytes, int64_t span, LevelsOut out, const nb::int_& threads) {
    const auto count = static_cast<int64_t>(bytes.shape(0));
    require(span > 0 && count % span == 0, "bytes: must be whole runs");
    require(static_cast<int64_t>(out.shape(0)) == 4 * count, "out: must have four for each byte");
    Pool& p = pool(threads);
    nb::gil_scoped_release release;
    i2s_levels(bytes.data(), count, span, out.data(), p);
}

}  // namespace

void bind_packing(nb::module_& m) {
    // The capsule's name has the digest of the headers that both modules were compiled with.
    m.def(
        "add_layouts",
        [](const nb::capsule& layouts) {
            add_layouts(*static_cast<const AddedLayouts*>(layouts.data(STERNA_LAYOUTS_CAPSULE)));
        },
        "layouts"_a);
    m.def(
        "tile_bytes",
        [](const std::string& layout, int64_t K) {
            return tile_bytes(all_tables().front()->formats[layout_index(layout)], K);
        },
        "layout"_a, "K"_a);
    m.def(
        "layout_facts",
        [](const std::string& layout) {
            const auto& f = all_tables().front()->formats[layout_index(layout)];
            nb::dict facts;
            facts["tile_rows"] = f.tile_rows;
            facts["step_k"] = f.step_k;
            facts["group_scales"] = f.groups;
            facts["levels"] = f.levels;
            facts["level_offset"] = f.level_offset;
            return facts;
        },
        "layout"_a);
    m.def("pack", &pack, "layout"_a, "source"_a, "parts"_a, "level_offset"_a, "level_step"_a,
          "order"_a.none(), "threads"_a);
    m.def("pack_ggml", &pack_ggml, "layout"_a, "type"_a, "parts"_a, "level_offset"_a,
          "level_step"_a, "order"_a.none(), "scale_tile_bytes"_a, "threads"_a);
    m.def("grid_codes", &grid_codes, "type"_a);
    m.def("i2s_levels", &levels_of_i2s, "bytes"_a, "span"_a, "out"_a.noconvert(), "threads"_a);
    m.def("ggml_types", [] {
        nb::dict types;
        for (const auto& t : block_types()) types[t.name] = std::tuple<int, int>(t.k, t.bytes);
        return types;
    });
}

}  // namespace sterna::border
