// Every code layout with each kind of scales that it may have, for few tokens and many.
#include <algorithm>

#include "comparison.h"

namespace sterna::foreign {

namespace {

constexpr int kTokens[] = {1, 2, 3, 5, 8, 17};
constexpr int kMostTokens = 17;

// The codes of a codebook: 0 to codes - 1. Floats have none.
struct Codebook {
    const char* layout;
    uint32_t codes;
    int zero_x2;
};
constexpr Codebook kCodebooks[] = {
    {"b1", 2, 1},    {"b2", 3, 2},      {"b2", 4, 3},      {"b2", 4, 0},       {"t5", 3, 2},
    {"elut4", 4, 3}, {"elut5", 5, 4},   {"tl1_0", 3, 2},   {"tl1_1", 3, 2},    {"tl2_0", 3, 2},
    {"tl2_1", 3, 2}, {"tmac2_0", 3, 2}, {"tmac2_1", 3, 2}, {"b3", 8, 8},       {"b4", 16, 16},
    {"b4", 16, 0},   {"b5", 32, 0},     {"b5", 32, 32},    {"b6", 64, 64},     {"b8", 256, 256},
    {"fp4", 16, 24}, {"iq4", 16, 256},  {"pot4", 16, 256}, {"pot4z", 16, 128}, {"f32", 0, 0},
    {"bf16", 0, 0},  {"f16", 0, 0},     {"pot8", 0, 0},    {"fp8", 0, 0},      {"nvfp4", 0, 0},
};

struct Scales {
    std::string name;
    int64_t group_k = 0, x_group_k = kGroupK;  // 0: one for each row
    ScaleType type = ScaleType::kF16;
    bool minima = false;
    bool none = false;  // floats alone
};

std::vector<Scales> scales_of(const FormatKernels& f, const Codebook& book) {
    std::vector<Scales> all;
    if (!f.integer) all.push_back({.name = "no scales", .none = true});
    if (f.rows) all.push_back({.name = "rows"});
    if (f.groups && !(f.even_offset && book.zero_x2 % 2)) {
        all.push_back({.name = "g32", .group_k = 32});
        all.push_back({.name = "g128", .group_k = 128});
        all.push_back({.name = "e8m0", .group_k = 32, .type = ScaleType::kE8M0});
        if (f.minima) all.push_back({.name = "g32 minima", .group_k = 32, .minima = true});
        if (f.long_groups) all.push_back({.name = "g256", .group_k = 256, .x_group_k = 256});
    }
    if (f.super_group && book.zero_x2 == 2 * f.super_offset) {
        const bool nibbles = std::string(f.name) == "b2";
        all.push_back({.name = "super-blocks",
                       .group_k = f.super_group,
                       .type = nibbles ? ScaleType::kSuper4 : ScaleType::kSuper8,
                       .minima = f.minima});
    }
    return all;
}

// Rows of a source, as PackArgs wants them.
std::vector<uint8_t> source_of(const FormatKernels& f, const Codebook& book, int64_t M, int64_t K,
                               Random& random) {
    std::vector<uint8_t> bytes(static_cast<size_t>(M * K * f.source_bytes));
    const std::string name = f.name;
    for (int64_t i = 0; i < M * K; ++i) {
        uint8_t* at = bytes.data() + i * f.source_bytes;
        const float x = random.bell();
        uint32_t word;
        memcpy(&word, &x, 4);
        if (f.integer) {
            *at = static_cast<uint8_t>(random.below(book.codes));
        } else if (name == "pot8") {
            *at = static_cast<uint8_t>(random.below(2) << 7 | random.below(12));
        } else if (name == "fp8" || name == "nvfp4") {
            at[0] = static_cast<uint8_t>(random.below(name == "fp8" ? 256 : 16));
            // The last byte of a scale, its sign and exponent: what is stored makes weights of usual sizes.
            const int exponent = name == "fp8" ? 0x78 : 0x30;
            at[1] = static_cast<uint8_t>(i % K % 4 == 3 ? exponent : random.below(256));
        } else if (name == "f16") {  // subnormal ones too
            const auto half = static_cast<uint16_t>(random.below(2) << 15 | random.below(0x4000));
            memcpy(at, &half, 2);
        } else if (name == "bf16") {
            word >>= 16;
            memcpy(at, &word, 2);
        } else {
            memcpy(at, &word, 4);
        }
    }
    return bytes;
}

// A packed matrix with its memory.
struct Matrix {
    std::vector<uint8_t> source, codes, groups;
    std::vector<SourceRow> rows;
    std::vector<float> scale;
    Weight weight;
};

Matrix make_matrix(Comparison& c, int index, const Codebook& book, const Scales& scales, int64_t M,
                   int64_t K, Random& random, const std::string& what) {
    const FormatKernels& f = c.scalar.formats[index];
    Matrix m;
    Weight& w = m.weight;
    const int64_t step = f.integer ? kPad : f.step_k;
    w.format = index, w.M = M, w.K = K, w.padded_k = (K + step - 1) / step * step;
    w.tiles = (M + f.tile_rows - 1) / f.tile_rows, w.tile_bytes = f.tile_bytes(w.padded_k);
    w.zero_x2 = book.zero_x2;
    m.source = source_of(f, book, M, K, random);
    for (int64_t r = 0; r < M; ++r) m.rows.push_back({m.source.data() + r * K * f.source_bytes, 0});
    m.codes.resize(static_cast<size_t>(w.tiles * w.tile_bytes));
    auto of_unit = m.codes;
    PackArgs pack{m.rows.data(), M, K, 0, 255, m.codes.data(), w.tile_bytes, 0, w.tiles};
    f.pack(pack);
    pack.codes = of_unit.data();
    c.unit.formats[index].pack(pack);
    c.equal(what + ", pack", of_unit, m.codes);
    w.codes = m.codes.data();
    if (scales.group_k) {
        w.groups = {nullptr,
                    scales.group_k,
                    scales.x_group_k,
                    scales.type,
                    scales.minima,
                    0.5f,
                    GroupScales::inverse_of(scales.group_k)};
        const int64_t bytes = w.groups.tile_bytes(w.padded_k, f.tile_rows);
        m.groups.resize(static_cast<size_t>(w.tiles * bytes));
        for (size_t i = 0; i < m.groups.size(); ++i) {
            const size_t in_block =
                i % static_cast<size_t>(bytes) %
                static_cast<size_t>(w.groups.super() ? w.groups.super_bytes(f.tile_rows) : bytes);
            const bool half = w.groups.super()
                                  ? in_block < static_cast<size_t>(w.groups.head_bytes(f.tile_rows))
                                  : scales.type == ScaleType::kF16;
            m.groups[i] =
                static_cast<uint8_t>(half ? (i % 2 ? 0x20 + random.below(0x18) : random.below(256))
                                     : scales.type == ScaleType::kE8M0   ? 120 + random.below(10)
                                     : scales.type == ScaleType::kSuper4 ? random.below(256)
                                     : scales.minima                     ? random.below(64)
                                                                         : random.below(64) - 32);
        }
        w.groups.data = m.groups.data();
    } else if (!scales.none) {
        m.scale = random.floats(w.tiles * f.tile_rows, 0.01f);
        std::fill(m.scale.begin() + M, m.scale.end(), 0.0f);
        w.scale = m.scale.data();
    }
    return m;
}

// Activations as a table wants them for n tokens.
Activations rounded(const KernelTable& table, const Weight& w, const std::vector<float>& x, int n) {
    Activations rows(w.K);
    rows.reserve(n);
    for (int i = 0; i < n; ++i) {
        RowwiseArgs r{};
        r.x = x.data() + i * w.K;
        r.width = w.K;
        r.yf = rows.row(i);
        if (table.formats[w.format].integer)
            rows.quantize_into(r, i, table.x_block(n), w.x_group_k());
        if (!table.rowwise(r)) abort();
    }
    return rows;
}

std::vector<float> product(const KernelTable& table, const Weight& w, const std::vector<float>& x,
                           int n, const Reading& reading, int direct, const float* residual) {
    const Activations rows = rounded(table, w, x, n);
    Activations out(w.M);
    out.reserve_floats(n);
    LinearArgs a = linear_args(w, rows, n, table.x_block(n), out);
    a.reading = reading;
    a.direct_tokens = direct;
    a.residual = residual;
    HugeBuffer scratch(static_cast<size_t>(table.formats[w.format].scratch_bytes(a.K, n)) + 64);
    a.scratch = scratch.data();
    table.formats[w.format].linear(a);
    std::vector<float> y;
    for (int i = 0; i < n; ++i) y.insert(y.end(), out.row(i), out.row(i) + w.M);
    return y;
}

void compare_products(Comparison& c, const Weight& w, Random& random, const std::string& what) {
    const auto x = random.floats(kMostTokens * w.K);
    const auto residual = random.floats(2 * padded_width(w.M));
    const auto check = [&](int n, const Reading& reading, int direct, const float* added) {
        c.equal(what + ", " + std::to_string(n) + " tokens, direct " + std::to_string(direct),
                product(c.unit, w, x, n, reading, direct, added),
                product(c.scalar, w, x, n, reading, direct, added));
    };
    for (const int n : kTokens) check(n, {}, 0, nullptr);
    check(8, {}, 1, nullptr);
    check(8, {}, 16, nullptr);
    check(1, {.streams = 2, .into_l2 = true}, 0, nullptr);
    check(3, {.streams = 3, .into_l2 = true, .turn_bytes = 512, .prefetch_bytes = 0}, 0, nullptr);
    check(2, {}, 0, residual.data());
}

void compare_reading(Comparison& c, const Weight& w, const std::string& what) {
    const auto &u = c.unit.formats[w.format], &s = c.scalar.formats[w.format];
    std::vector<float> of_unit(static_cast<size_t>(w.K)), of_scalar = of_unit;
    for (const int64_t row : {int64_t{0}, w.M / 2, w.M - 1}) {
        RowArgs a{w.codes, w.tile_bytes, row, w.K, of_unit.data()}, b = a;
        b.out = of_scalar.data();
        u.row(a), s.row(b);
        c.equal(what + ", row", of_unit, of_scalar);
        if (!w.groups.group_k) continue;
        u.values(a, w.groups, w.zero_x2), s.values(b, w.groups, w.zero_x2);
        c.equal(what + ", values", of_unit, of_scalar);
    }
}

// What an exact head takes of floats: rows computed alone, and its shadow.
void compare_head(Comparison& c, const Weight& w, Random& random, const std::string& what) {
    const auto &u = c.unit.formats[w.format], &s = c.scalar.formats[w.format];
    const auto x = random.floats(w.padded_k);
    const int32_t row_blocks[] = {2, 0, 1};
    std::vector<float> y(3 * kRowBlock), z = y;
    RescoreArgs a{w.codes, w.tile_bytes, w.padded_k, x.data(), row_blocks, 3, y.data()};
    u.rescore(a);
    a.y = z.data();
    s.rescore(a);
    c.equal(what + ", rescore", y, z);
    const int64_t rows = w.tiles * s.tile_rows, width = padded_width(w.K);
    const auto shadow = [&](const FormatKernels& f) {
        std::vector<float> all(static_cast<size_t>(4 * rows));
        std::vector<uint8_t> out(static_cast<size_t>((rows + 63) / 64 * 64 * width));
        f.make_shadow({w.codes, w.tile_bytes, w.padded_k, out.data(), 64 * width, all.data(),
                       all.data() + rows, all.data() + 2 * rows, all.data() + 3 * rows, 0,
                       rows / kRowBlock});
        const auto* bytes = reinterpret_cast<const uint8_t*>(all.data());
        out.insert(out.end(), bytes, bytes + all.size() * 4);
        return out;
    };
    c.equal(what + ", shadow", shadow(u), shadow(s));
}

// One token and what is active: copies of rows and columns, and their products.
void compare_active(Comparison& c, const Weight& w, Random& random, const std::string& what) {
    const auto &u = c.unit.formats[w.format], &s = c.scalar.formats[w.format];
    const auto copied = [&](const FormatKernels& f, bool columns) {
        const int64_t stride = active_stride(columns ? w.M : w.padded_k);
        std::vector<uint8_t> out(
            static_cast<size_t>((columns ? w.padded_k : w.tiles * f.tile_rows) * stride));
        (columns ? f.copy_columns
                 : f.copy_rows)({w.codes, w.tile_bytes, w.tiles, w.M, w.padded_k, out.data(),
                                 stride, 0, 0, columns ? w.padded_k : w.tiles});
        return out;
    };
    const auto rows = copied(s, false), columns = copied(s, true);
    c.equal(what + ", copy of rows", copied(u, false), rows);
    c.equal(what + ", copy of columns", copied(u, true), columns);
    auto x = random.floats(w.K);
    for (size_t i = 0; i < x.size(); i += 3) x[i] = 0;
    auto gate = random.floats(w.tiles * s.tile_rows);
    for (float& g : gate) g = random.below(3) ? -1.0f : g;
    const auto run = [&](const KernelTable& table) {
        const Activations rounded_x = rounded(table, w, x, 1);
        Activations out(w.M);
        out.reserve_floats(1);
        LinearArgs a = linear_args(w, rounded_x, 1, 1, out);
        HugeBuffer scratch(
            static_cast<size_t>(active_scratch(w.padded_k, w.tiles * s.tile_rows)) * 8 + 4096);
        a.scratch = scratch.data();
        std::vector<float> y(static_cast<size_t>(w.tiles * s.tile_rows));
        table.linear_open_rows(
            a, {rows.data(), active_stride(w.padded_k), gate.data(), w.scale, y.data()}, 0, w.M);
        HugeBuffer places(static_cast<size_t>(w.padded_k + kActiveBlock) * 4),
            values(static_cast<size_t>(w.padded_k + kActiveBlock));
        auto* where = reinterpret_cast<int32_t*>(places.data());
        auto* what_is = reinterpret_cast<int8_t*>(values.data());
        const int64_t count = table.list_nonzero(a.xq, padded_width(w.K), where, what_is);
        for (int64_t i = 0; i < count; ++i)
            y.push_back(static_cast<float>(where[i] * 256 + what_is[i]));
        const int64_t lines = active_stride(w.M) / 64;
        table.linear_columns(a, {columns.data(), active_stride(w.M), where, what_is, count}, 0,
                             lines);
        y.insert(y.end(), out.row(0), out.row(0) + w.M);
        return y;
    };
    c.equal(what + ", what is active", run(c.unit), run(c.scalar));
}

}  // namespace

void compare_formats(Comparison& c) {
    Random random;
    for (const Codebook& book : kCodebooks)
        for (int index = 0; index < c.scalar.n_formats; ++index) {
            const FormatKernels& f = c.scalar.formats[index];
            if (std::string(book.layout) != f.name) continue;
            for (const Scales& scales : scales_of(f, book)) {
                const int64_t K =
                    scales.x_group_k == kLongGroupK || scales.type >= ScaleType::kSuper8 ? 512
                    : scales.group_k > kGroupK                                           ? 256
                                                                                         : 301;
                const std::string what =
                    std::string(f.name) + " " + std::to_string(book.zero_x2) + " " + scales.name;
                const Matrix m = make_matrix(c, index, book, scales, 133, K, random, what);
                compare_products(c, m.weight, random, what);
                compare_reading(c, m.weight, what);
                if (!f.integer && scales.none) compare_head(c, m.weight, random, what);
                if (f.copy_rows && !scales.group_k) compare_active(c, m.weight, random, what);
            }
        }
}

}  // namespace sterna::foreign
