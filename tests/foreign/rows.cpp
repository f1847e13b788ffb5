// What runs on a token's row between matrices: activations, norms and their rounding, rotations, recurrence, adapters.
#include "comparison.h"

namespace sterna::foreign {

namespace {

using Floats = std::vector<float>;

void compare_rowwise(Comparison& c, Random& random, const RowwiseArgs& how, int64_t width,
                     const std::string& what) {
    const bool glu = how.glu != Glu::kNone;
    const auto x = random.floats((glu ? 2 : 1) * padded_width(width), 3.0f);
    const auto run = [&](const KernelTable& table) {
        Activations rows(width);
        rows.reserve(1);
        RowwiseArgs a = how;
        a.x = x.data();
        a.width = width;
        a.up_offset = padded_width(width);
        a.yf = rows.row(0);
        rows.quantize_into(a, 0, 1, how.group_k);
        if (!table.rowwise(a)) abort();
        Floats y(rows.row(0), rows.row(0) + width);
        for (int64_t i = 0; i < rows.ld; ++i) y.push_back(a.yq[i]);
        y.insert(y.end(), a.x_scale, a.x_scale + rows.groups(how.group_k));
        for (int64_t i = 0; i < rows.groups(how.group_k ? kSumK : 0); ++i)
            y.push_back(static_cast<float>(a.x_sum[i]));
        return y;
    };
    c.equal("rowwise, " + what, run(c.unit), run(c.scalar));
}

void compare_rowwise(Comparison& c, Random& random) {
    const auto norm = random.floats(512), signs = random.floats(512);
    Floats one(512);
    for (size_t i = 0; i < one.size(); ++i) one[i] = signs[i] < 0 ? -1.0f : 1.0f;
    for (const int64_t width : {16, 63, 301, 512})
        for (int glu = 0; glu <= static_cast<int>(Glu::kClamped); ++glu)
            for (const int64_t group_k : {0, 32, 256})
                for (const bool normed : {false, true}) {
                    RowwiseArgs a{};
                    a.glu = static_cast<Glu>(glu);
                    a.limit = 2.0f;
                    a.norm = normed ? norm.data() : nullptr;
                    a.eps = 1e-5f;
                    a.group_k = group_k;
                    const std::string what = std::to_string(width) + ", glu " + std::to_string(glu);
                    compare_rowwise(c, random, a, width, what);
                    if (width % 16) continue;
                    a.hadamard_block = 16;
                    a.signs = one.data();
                    a.signs_last = normed;
                    compare_rowwise(c, random, a, width, what + ", hadamard");
                }
}

// Calls run(table, x) with a copy of x for each table, and compares what it leaves there.
template <class Run>
void in_place(Comparison& c, const std::string& what, const Floats& x, Run run) {
    Floats of_unit = x, of_scalar = x;
    run(c.unit, of_unit.data());
    run(c.scalar, of_scalar.data());
    c.equal(what, of_unit, of_scalar);
}

void compare_rotations(Comparison& c, Random& random) {
    const auto cosine = random.floats(64), sine = random.floats(64);
    for (const bool interleaved : {false, true})
        for (const int rotary : {16, 32, 64, 128}) {
            RopeArgs a{nullptr, cosine.data(), sine.data(), 3, 128, rotary, interleaved};
            in_place(c, "rope", random.floats(3 * 128), [&](const KernelTable& table, float* x) {
                RopeArgs b = a;
                b.x = x;
                if (!table.rope(b)) abort();
            });
        }
    for (const int64_t count : {16, 100, 333})
        in_place(c, "cap", random.floats(count, 40.0f),
                 [&](const KernelTable& table, float* x) { table.cap({x, count, 30.0f}); });
}

void compare_recurrence(Comparison& c, Random& random) {
    constexpr int64_t kTokens = 5, kChannels = 48, kK = 32, kColumns = 40;
    const auto weight = random.floats(4 * kChannels), state = random.floats(3 * kChannels);
    for (const bool fresh : {false, true})
        in_place(c, "conv", random.floats(kTokens * kChannels),
                 [&](const KernelTable& table, float* x) {
                     Floats before = state;
                     table.conv({x, nullptr, nullptr, kChannels, kTokens, kChannels, weight.data(),
                                 nullptr, kChannels, 4, before.data(), fresh, x, kChannels});
                     for (size_t i = 0; i < before.size(); ++i) x[i % kChannels] += before[i];
                 });
    const auto rate = random.floats(16), bias = random.floats(16);
    in_place(c, "gates", random.floats(4 * kK + 32), [&](const KernelTable& table, float* x) {
        const GatesArgs a{x,           x + 2 * kK,  x + 4 * kK, x + 4 * kK + 16,
                          rate.data(), bias.data(), 2,          16,
                          kK,          16,          1.0f};
        if (!table.gates(a)) abort();
    });
    const auto q = random.floats(kTokens * kK), k = random.floats(kTokens * kK);
    const auto v = random.floats(kTokens * kColumns),
               decay = random.floats(kTokens * kColumns, 0.1f);
    const int64_t size = state_blocks(kColumns) * kK * kStateColumns;
    for (const bool fresh : {false, true})
        in_place(c, "recurrence", random.floats(size + kTokens * padded_width(kColumns)),
                 [&](const KernelTable& table, float* x) {
                     RecurrenceArgs a{};
                     a.q = q.data(), a.k = k.data(), a.v = v.data();
                     a.decay = decay.data(), a.beta = decay.data() + 1;
                     // One row width for all: q and k are read at their own columns of it.
                     a.ldx = 0, a.tokens = kTokens, a.k_dim = kK, a.columns = kColumns;
                     a.state = x, a.fresh = fresh;
                     a.out = x + size, a.ldo = padded_width(kColumns);
                     if (!table.recurrence(a)) abort();
                     a.space = {decay.data(), 0.5f, -0.3f, 0.01f, 9.0f, 0.7f};
                     if (!table.recurrence(a)) abort();
                 });
    const auto gate = random.floats(3 * 32), norm = random.floats(32);
    for (const bool silu : {false, true})
        for (const bool single : {false, true})
            in_place(c, "gated", random.floats(3 * 32), [&](const KernelTable& table, float* x) {
                const Floats from(x, x + 3 * 32);
                GatedArgs a{};
                a.x = from.data(), a.gate = gate.data(), a.heads = 3, a.head_dim = 32;
                a.gate_stride = single ? 1 : 32, a.silu = silu, a.single = single;
                a.norm = silu ? norm.data() : nullptr, a.eps = 1e-6f, a.y = x, a.y_stride = 32;
                a.first = single;
                if (!table.gated(a)) abort();
            });
}

void compare_low_rank(Comparison& c, Random& random) {
    constexpr int64_t kColumns = 37, kBlocks = 3, kLd = kBlocks * kRowBlock;
    const auto tiles = random.floats(kLd * kColumns);
    for (const int64_t tokens : {1, 2, 5, 8, 11})
        for (const bool adds : {false, true})
            in_place(c, "low_rank", random.floats(tokens * (kColumns + kLd)),
                     [&](const KernelTable& table, float* x) {
                         table.low_rank({tiles.data(), kLd - (adds ? 5 : 0), kColumns, x, kColumns,
                                         tokens, x + tokens * kColumns, kLd, adds, 0.3f});
                     });
}

}  // namespace

void compare_rows(Comparison& c) {
    Random random;
    compare_rowwise(c, random);
    compare_rotations(c, random);
    compare_recurrence(c, random);
    compare_low_rank(c, random);
}

}  // namespace sterna::foreign
