// Every code layout with each kind of scales that it may have, for few tokens and many, with each part of a layer.
#include <algorithm>
#include <cmath>

#include "program/tensors.h"
#include "selfcheck/findings.h"

namespace sterna::selfcheck {

namespace {

constexpr int64_t kM = 133;  // odd, as K is where the scales let it be
constexpr int kMostTokens = 130;
constexpr int64_t kMostK = 512;

// The codes of a codebook: 0 to codes - 1. Floats have none.
struct Codebook {
    const char* layout;
    uint32_t codes;
    int zero_x2;
    // Numbers that are drawn before its matrices and not used: layouts that lay between took them, and the digests of
    // those that follow stay as they are.
    unsigned skip = 0;
    // Not kF16: in micro-blocks, or in super-blocks of this type, and in no other way. Those of levels that are looked up
    // have minima.
    ScaleType only = ScaleType::kF16;
};
// By a matrix of 301 columns with a scale for each row: five for each code, and four for each scale of three tiles.
constexpr unsigned kDrawnByRows = 5 * 133 * 301 + 4 * 3 * 64;
// By two matrices of 301 columns of a float layout, one of them with a scale for each row, whose source words had a byte of
// a scale in three of four.
constexpr unsigned kDrawnByScaled = 2 * 133 * (301 * 5 + 226) + 4 * 3 * 64;
// By four matrices of nibbles, with groups of 32, of 128 and of E8M0, and with super-blocks.
constexpr unsigned kDrawnBySixteen =
    5 * 133 * (301 + 256 + 301 + 512) + 3 * (1280 + 256 + 640 + 1280);
constexpr Codebook kCodebooks[] = {
    {"b1", 2, 1},
    {"b2", 3, 2},
    {"b2", 4, 3},
    {"b2", 4, 0},
    {"t5", 3, 2},
    {"s5", 3, 2, 6 * kDrawnByRows},
    {"b3", 8, 8, 2 * kDrawnByRows},
    {"b4", 16, 16},
    {"b4", 16, 0},
    {"b5", 32, 0},
    {"b5", 32, 32},
    {"b6", 64, 64},
    {"b8", 256, 256},
    {"fp4", 16, 24},
    {"pot4", 16, 256, kDrawnBySixteen},
    {"pot4z", 16, 128},
    {"f32", 0, 0},
    {"bf16", 0, 0},
    {"f16", 0, 0},
    {"pot8", 0, 0},
    {"fp8", 0, 0},
    {"iq1_s", 19, 18, kDrawnByScaled},
    {"iq1_m", 19, 18},
    {"iq2_xxs", 87, 86},
    {"iq2_xs", 87, 86},
    {"iq2_s", 87, 86},
    {"iq3_xxs", 63, 62},
    {"iq3_s", 31, 30},
    {"lut4", 16, 256},
    {"lut2", 4, 16},
    {"fp4", 16, 24, 0, ScaleType::kE4M3},
    {"lut4x16", 16, 256},
    {"lut4x16", 16, 256, 0, ScaleType::kSuper8},
    {"lut4", 16, 256, 0, ScaleType::kWide8},
    {"b8x16", 256, 256},
    {"b8x16", 256, 256, 0, ScaleType::kWide8},
};

// Of layouts that look them up: any, with both ends, neither in order nor all different.
constexpr LevelTable kFourLevels = {{3, 7, -8, -1}};
constexpr LevelTable kSixteenLevels = {
    {-104, 127, -83, 0, -65, -49, -35, -128, -22, -10, 1, 13, 25, 113, 1, 69}};

struct Scales {
    std::string name;
    int64_t group_k = 0, x_group_k = kGroupK;  // 0: one for each row
    ScaleType type = ScaleType::kF16;
    bool minima = false;
    bool none = false;  // floats alone
};

std::vector<Scales> scales_of(const FormatKernels& f, const Codebook& book) {
    if (book.only == ScaleType::kE4M3)
        return {{.name = "micro-blocks", .group_k = kMicroK, .type = book.only}};
    if (book.only != ScaleType::kF16)
        return {{.name = book.only == ScaleType::kWide8 ? "wide super-blocks" : "minima",
                 .group_k = f.super_group,
                 .type = book.only,
                 .minima = f.levels > 0}};
    std::vector<Scales> all;
    if (!f.integer) all.push_back({.name = "no scales", .none = true});
    if (f.rows) all.push_back({.name = "rows"});
    if (f.groups && !(f.even_offset && book.zero_x2 % 2)) {
        all.push_back({.name = "g32", .group_k = 32});
        all.push_back({.name = "g128", .group_k = 128});
        all.push_back({.name = "e8m0", .group_k = 32, .type = ScaleType::kE8M0});
        if (f.minima) all.push_back({.name = "g32 minima", .group_k = 32, .minima = true});
    }
    if (f.long_groups) all.push_back({.name = "g256", .group_k = 256, .x_group_k = 256});
    if (f.long_groups && f.minima)
        all.push_back({.name = "g256 minima", .group_k = 256, .x_group_k = 256, .minima = true});
    if (f.super_group && book.zero_x2 == 2 * f.super_offset) {
        const std::string layout = f.name;
        all.push_back({.name = "super-blocks",
                       .group_k = f.super_group,
                       .type = layout == "iq1_m" ? ScaleType::kOdd3
                               : f.odd_scales    ? ScaleType::kOdd4
                               : layout == "b2"  ? ScaleType::kSuper4
                                                 : ScaleType::kSuper8,
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
        if (name == "s5") {  // of four, 16 k apart, one is 0: code 1
            const int64_t k = i % K;
            *at = static_cast<uint8_t>(k / 16 % 4 == (k + i / K) % 4 ? 1 : 2 * random.below(2));
        } else if (f.integer) {
            *at = static_cast<uint8_t>(random.below(book.codes));
        } else if (name == "pot8") {
            *at = static_cast<uint8_t>(random.below(2) << 7 | random.below(12));
        } else if (name == "fp8") {
            at[0] = static_cast<uint8_t>(random.below(256));
            // The last byte of a scale, its sign and exponent: what is stored makes weights of usual sizes.
            at[1] = static_cast<uint8_t>(i % K % 4 == 3 ? 0x78 : random.below(256));
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

Matrix make_matrix(Findings& found, int index, const Codebook& book, const Scales& scales,
                   int64_t M, int64_t K, Random& random) {
    const FormatKernels& f = found.unit.formats[index];
    Matrix m;
    Weight& w = m.weight;
    const int64_t step = f.integer ? kPad : f.step_k;
    w.format = index, w.M = M, w.K = K, w.padded_k = (K + step - 1) / step * step;
    w.tiles = (M + f.tile_rows - 1) / f.tile_rows, w.tile_bytes = f.tile_bytes(w.padded_k);
    w.zero_x2 = book.zero_x2;
    if (f.levels) w.levels = f.levels == 4 ? kFourLevels : kSixteenLevels;
    m.source = source_of(f, book, M, K, random);
    for (int64_t r = 0; r < M; ++r) m.rows.push_back({m.source.data() + r * K * f.source_bytes, 0});
    m.codes.resize(static_cast<size_t>(w.tiles * w.tile_bytes));
    f.pack({m.rows.data(), M, K, 0, 255, m.codes.data(), w.tile_bytes, 0, w.tiles});
    found.add("pack", m.codes);
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
            if (w.groups.micro()) {  // floats of rows, little endian, then any E4M3
                const bool floats = i % static_cast<size_t>(bytes) <
                                    static_cast<size_t>(kRowFloatBytes * f.tile_rows);
                m.groups[i] = static_cast<uint8_t>(!floats      ? random.below(127)
                                                   : i % 4 == 3 ? 0x3A
                                                                : random.below(256));
                continue;
            }
            const size_t in_block =
                i % static_cast<size_t>(bytes) %
                static_cast<size_t>(w.groups.super() ? w.groups.super_bytes(f.tile_rows) : bytes);
            const bool half = w.groups.super()
                                  ? in_block < static_cast<size_t>(w.groups.head_bytes(f.tile_rows))
                                  : scales.type == ScaleType::kF16;
            if (half && w.groups.wide()) {
                m.groups[i] = static_cast<uint8_t>(i % 4 == 3 ? 0x3A : random.below(256));
                continue;
            }
            m.groups[i] =
                static_cast<uint8_t>(half ? (i % 2 ? 0x20 + random.below(0x18) : random.below(256))
                                     : scales.type == ScaleType::kE8M0   ? 120 + random.below(10)
                                     : scales.type == ScaleType::kSuper4 ? random.below(256)
                                     : scales.type == ScaleType::kOdd4   ? random.below(256)
                                     : scales.type == ScaleType::kOdd3   ? random.below(64)
                                     : scales.minima                     ? random.below(64)
                                     : scales.type == ScaleType::kWide8  ? random.below(256)
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

// Activations as a unit wants them for n tokens: int8, bf16 planes, or floats.
Activations rounded(const KernelTable& unit, const Weight& w, const std::vector<float>& x, int n,
                    bool fast) {
    const FormatKernels& f = unit.formats[w.format];
    Activations rows(w.K);
    rows.reserve(n, fast ? f.fast.x_planes : 0);
    for (int i = 0; i < n; ++i) {
        RowwiseArgs r{};
        r.x = x.data() + i * kMostK;
        r.width = w.K;
        r.yf = rows.row(i);
        if (f.integer) rows.quantize_into(r, i, unit.x_block(n), w.x_group_k());
        unit.rowwise(r);
        if (fast) unit.to_bf16_planes(rows.bf16_planes_args(i, f.fast));
    }
    return rows;
}

// How a layer is called.
struct LayerCall {
    int n;
    bool residual = false, bias = false, in_place = false;  // in_place: the residual is in y
    int direct = 0;
    Reading reading = {};
    bool
        joint = false,
        tiles =
            false;  // tiles: into later columns of y, all tiles but the first, one piece after the other
    int tile_tokens = 0;  // LinearArgs
};

// Of each number of tokens, once with each part of an output, and the ways of reading and blocking.
std::vector<LayerCall> calls(bool ternary) {
    std::vector<LayerCall> all;
    for (const int n : {1, 4, 5, 16, 17, 130}) {
        all.push_back({n});
        all.push_back({n, true});
        all.push_back({n, false, true});
        all.push_back({n, true, true, n % 2 == 0});
        all.push_back({n, true, true, false, 0, {}, false, true});
    }
    for (const int n : {2, 3, 8}) all.push_back({n});
    all.push_back({8, false, false, false, 1});
    all.push_back({8, true, true, false, 16});
    all.push_back({1, false, false, false, 0, {.streams = 2, .into_l2 = true}});
    all.push_back({3,
                   true,
                   true,
                   false,
                   0,
                   {.streams = 3, .into_l2 = true, .turn_bytes = 512, .prefetch_bytes = 0}});
    if (ternary)
        for (const int n : {8, 17}) all.push_back({n, true, true, false, 0, {}, true});
    return all;
}

// What layers are called with, the same for all of them.
struct Inputs {
    std::vector<float> x, residual, bias;
    explicit Inputs(Random& random)
        : x(random.floats(kMostTokens * kMostK)),
          residual(random.floats(kMostTokens * 2 * padded_width(kM))),
          bias(random.floats(padded_width(kM))) {}
};

// Rows [0, M) of each token, as a unit computes them; those of tiles that the call leaves out stay kUntouched.
constexpr float kUntouched = 77.0f;
std::vector<float> product(const KernelTable& unit, const Weight& w, const Inputs& in,
                           const LayerCall& call, bool fast) {
    const FormatKernels& f = unit.formats[w.format];
    const Activations rows = rounded(unit, w, in.x, call.n, fast);
    const int64_t column = call.tiles ? kRowBlock : 0;
    Activations out(w.M + column);
    out.reserve_floats(call.n);
    for (int i = 0; i < call.n; ++i) {
        std::fill(out.row(i), out.row(i) + out.ld, kUntouched);
        if (call.in_place) std::copy_n(in.residual.data() + i * out.ld, out.ld, out.row(i));
    }
    LinearArgs a = linear_args(w, rows, call.n, unit.x_block(call.n), out);
    a.reading = call.reading;
    a.direct_tokens = call.direct;
    a.joint_tokens = call.joint ? kFewestJointTokens : 0;
    a.tile_tokens = call.tile_tokens;
    a.outputs.y += column;
    if (call.residual) a.outputs.residual = call.in_place ? a.outputs.y : in.residual.data();
    if (call.bias) a.outputs.bias = in.bias.data();
    const auto bytes = (fast ? f.fast.scratch_bytes : f.scratch_bytes)(a.K, call.n);
    const int64_t joint = call.joint && f.joint_scratch ? f.joint_scratch(call.n) : 0;
    HugeBuffer scratch(static_cast<size_t>(std::max(bytes, joint)) + 64);
    a.scratch = scratch.data();
    const auto linear = fast ? f.fast.linear : f.linear;
    if (call.tiles && w.tiles > 2) {
        a.tile_begin = 1, a.tile_end = 2;
        linear(a);
        a.scratch_ready = true;
        a.tile_begin = 2, a.tile_end = w.tiles;
    }
    linear(a);
    std::vector<float> y;
    for (int i = 0; i < call.n; ++i)
        y.insert(y.end(), out.row(i) + column, out.row(i) + column + w.M);
    return y;
}

// By its definition: (product + residual) + bias, one rounding each.
std::vector<float> with_parts(const Weight& w, const Inputs& in, const LayerCall& call,
                              std::vector<float> y) {
    const int64_t ld = padded_width(w.M);
    for (int64_t i = 0; i < std::ssize(y); ++i) {
        float& of = y[static_cast<size_t>(i)];
        const int64_t n = i / w.M, m = i % w.M;
        if (call.residual) of = in.residual[static_cast<size_t>(n * ld + m)] + of;
        if (call.bias) of += in.bias[static_cast<size_t>(m)];
    }
    return y;
}

std::string name_of(const LayerCall& call) {
    std::string name = std::to_string(call.n) + " tokens";
    if (call.residual) name += call.in_place ? ", residual in place" : ", residual";
    if (call.bias) name += ", bias";
    if (call.direct) name += ", direct " + std::to_string(call.direct);
    if (call.reading.streams > 1) name += ", streams";
    if (call.joint) name += ", joint";
    if (call.tiles) name += ", some tiles";
    return name;
}

void check_calls(Findings& found, const Weight& w, const Inputs& in, bool ternary, bool fast) {
    std::vector<float> plain;  // of the last number of tokens
    for (const LayerCall& call : calls(ternary)) {
        const auto y = product(found.unit, w, in, call, fast);
        found.add(name_of(call), y);
        const bool whole = call.direct == 0 && call.reading.streams == 1 && !call.joint;
        if (whole && !call.residual && !call.bias) plain = y;
        if (whole && !call.tiles && std::ssize(plain) == call.n * w.M &&
            y != with_parts(w, in, call, plain))
            found.wrong(name_of(call) + ": is not the product with what is added to it");
        if (fast || !whole || found.unit.x_block(call.n) == 1 || call.n > kMostVectorTokens)
            continue;
        LayerCall vectors = call;
        vectors.tile_tokens = kMostVectorTokens + 1;
        if (product(found.unit, w, in, vectors, fast) != y)
            found.wrong(name_of(call) + ": has other bits on vectors than on tiles");
    }
}

// Float sums against sums in double: a product is off by its roundings, at most. That of planes of bf16 is not
// the scalar unit's, so that no other unit says what it is.
void check_bound(Findings& found, const Weight& w, const Inputs& in, bool fast) {
    constexpr int kN = 17;
    const FormatKernels& f = found.unit.formats[w.format];
    const auto y = product(found.unit, w, in, {kN}, fast);
    std::vector<float> row(static_cast<size_t>(w.K));
    // test_fast.py derives this: of bf16 alone the rounding of x, else the products of planes that are left out, and
    // the roundings of sums.
    const double least = 0x1p-126, planes = fast ? f.fast.products : 1;
    const double rounding = fast ? (f.fast.products == 1 ? 0x1p-8 : 4.1 * 0x1p-24) : 0;
    const double steps = fast && f.fast.tiles ? static_cast<double>((w.K + 31) / 32) * planes + 33
                                              : static_cast<double>(w.K) + 1;
    for (int64_t m = 0; m < w.M; ++m) {
        f.row({w.codes, w.tile_bytes, m, w.K, row.data(), w.levels});
        const double scale = w.scale ? w.scale[m] : 1.0;
        for (int64_t n = 0; n < kN; ++n) {
            double sum = 0, size = 0, lost = 0;
            for (int64_t k = 0; k < w.K; ++k) {
                const double a = row[static_cast<size_t>(k)];
                const double x = in.x[static_cast<size_t>(n * kMostK + k)];
                sum += a * x, size += std::abs(a * x), lost += std::abs(a) + std::abs(x);
            }
            const double bound = (rounding + (steps + 1) * 0x1p-24 * 1.01) * size +
                                 4 * least * (lost + planes * 2 * static_cast<double>(w.K));
            const double error = std::abs(y[static_cast<size_t>(n * w.M + m)] - sum * scale);
            if (!(error <= bound * std::abs(scale) + least))
                return found.wrong("17 tokens: a sum is further off than by its roundings");
        }
    }
}

void check_reading(Findings& found, const Weight& w) {
    const FormatKernels& f = found.unit.formats[w.format];
    std::vector<float> values(static_cast<size_t>(w.K));
    for (const int64_t row : {int64_t{0}, w.M / 2, w.M - 1}) {
        const RowArgs a{w.codes, w.tile_bytes, row, w.K, values.data(), w.levels};
        f.row(a);
        found.add("row", values);
        if (!w.groups.group_k) continue;
        f.values(a, w.groups, w.zero_x2);
        found.add("values", values);
    }
}

// What an exact head takes of floats: rows computed alone, and its shadow.
void check_head(Findings& found, const Weight& w, const Inputs& in) {
    const FormatKernels& f = found.unit.formats[w.format];
    std::vector<float> x(in.x.begin(), in.x.begin() + w.padded_k);
    const int32_t row_blocks[] = {2, 0, 1};
    std::vector<float> y(3 * kRowBlock);
    f.rescore({w.codes, w.tile_bytes, w.padded_k, x.data(), row_blocks, 3, y.data()});
    found.add("rescore", y);
    const int64_t rows = w.tiles * f.tile_rows, width = padded_width(w.K);
    std::vector<float> all(static_cast<size_t>(4 * rows));
    std::vector<uint8_t> out(static_cast<size_t>((rows + 63) / 64 * 64 * width));
    f.make_shadow({w.codes, w.tile_bytes, w.padded_k, out.data(), 64 * width, all.data(),
                   all.data() + rows, all.data() + 2 * rows, all.data() + 3 * rows, 0,
                   rows / kRowBlock});
    found.add("shadow", out);
    found.add("shadow's bounds", all);
}

std::vector<uint8_t> copied(const FormatKernels& f, const Weight& w, bool columns) {
    const int64_t stride = active_stride(columns ? w.M : w.padded_k);
    std::vector<uint8_t> out(
        static_cast<size_t>((columns ? w.padded_k : w.tiles * f.tile_rows) * stride));
    (columns ? f.copy_columns
             : f.copy_rows)({w.codes, w.tile_bytes, w.tiles, w.M, w.padded_k, out.data(), stride, 0,
                             0, columns ? w.padded_k : w.tiles});
    return out;
}

// One token and what is active: copies of rows and columns, and their products.
void check_active(Findings& found, const Weight& w, const Inputs& in, Random& random) {
    const KernelTable& unit = found.unit;
    const FormatKernels& f = unit.formats[w.format];
    const auto rows = copied(f, w, false), columns = copied(f, w, true);
    found.add("copy of rows", rows);
    found.add("copy of columns", columns);
    auto x = in.x;
    for (size_t i = 0; i < x.size(); i += 3) x[i] = 0;
    const int64_t padded_rows = w.tiles * f.tile_rows;
    auto gate = random.floats(padded_rows);
    for (float& g : gate) g = random.below(3) ? -1.0f : g;
    const Activations rounded_x = rounded(unit, w, x, 1, false);
    Activations out(w.M);
    out.reserve_floats(1);
    LinearArgs a = linear_args(w, rounded_x, 1, 1, out);
    HugeBuffer scratch(static_cast<size_t>(active_scratch(w.padded_k, padded_rows)) * 8 + 4096);
    a.scratch = scratch.data();
    std::vector<float> y(static_cast<size_t>(padded_rows));
    unit.linear_open_rows(
        a, {rows.data(), active_stride(w.padded_k), gate.data(), w.scale, y.data()}, 0, w.M);
    found.add("open rows", y);
    HugeBuffer places(static_cast<size_t>(w.padded_k + kActiveBlock) * 4),
        values(static_cast<size_t>(w.padded_k + kActiveBlock));
    auto* where = reinterpret_cast<int32_t*>(places.data());
    auto* which = reinterpret_cast<int8_t*>(values.data());
    const int64_t count = unit.list_nonzero(a.xq, padded_width(w.K), where, which);
    y.clear();
    for (int64_t i = 0; i < count; ++i) y.push_back(static_cast<float>(where[i] * 256 + which[i]));
    found.add("places that are not 0", y);
    a.outputs.residual = in.residual.data();
    unit.linear_columns(a, {columns.data(), active_stride(w.M), where, which, count}, 0,
                        active_stride(w.M) / 64);
    found.add("active columns", std::vector<float>(out.row(0), out.row(0) + w.M));
}

}  // namespace

void check_products(Findings& found) {
    Random random;
    const Inputs in(random);
    for (const Codebook& book : kCodebooks) {
        random.skip(book.skip);
        for (int index = 0; index < found.unit.n_formats; ++index) {
            const FormatKernels& f = found.unit.formats[index];
            if (std::string(book.layout) != f.name) continue;
            for (const Scales& scales : scales_of(f, book)) {
                const int64_t K =
                    scales.x_group_k == kLongGroupK || scales.type >= ScaleType::kSuper8 ? 512
                    : scales.group_k > kGroupK                                           ? 256
                                                                                         : 301;
                const std::string name = f.name;
                found.begin(name + " " + std::to_string(book.zero_x2) + " " + scales.name);
                const Matrix m = make_matrix(found, index, book, scales, kM, K, random);
                check_calls(found, m.weight, in, book.codes == 3, false);
                check_reading(found, m.weight);
                if (!f.integer && scales.none) check_head(found, m.weight, in);
                if (f.copy_rows && !scales.group_k) check_active(found, m.weight, in, random);
                if (!f.integer) check_bound(found, m.weight, in, false);
                if (!f.fast.linear) continue;
                // Other bits have another name, which begins alike: no unit must have these.
                found.begin((f.fast.tiles ? "fast " : "fast pairs ") + name + " " + scales.name);
                check_calls(found, m.weight, in, false, true);
                check_bound(found, m.weight, in, true);
            }
        }
    }
}

}  // namespace sterna::selfcheck
