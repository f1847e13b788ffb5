// What runs on a token's row between matrices: activations, norms and their rounding, rotations, recurrence, adapters.
#include "program/tensors.h"
#include "selfcheck/findings.h"

namespace sterna::selfcheck {

namespace {

using Floats = std::vector<float>;

void check_rowwise(Findings& found, Random& random, const RowwiseArgs& how, int64_t width,
                   int planes, const std::string& what) {
    const auto x = random.floats((how.glu != Glu::kNone ? 2 : 1) * padded_width(width), 3.0f);
    Activations rows(width);
    rows.reserve(1, 0, 2);
    RowwiseArgs a = how;
    a.x = x.data();
    a.width = width;
    a.up_offset = padded_width(width);
    a.yf = rows.row(0);
    rows.quantize_into(a, 0, 1, how.group_k, planes);
    if (!found.unit.rowwise(a)) return found.wrong(what);
    Floats y(rows.row(0), rows.row(0) + width);
    const auto plane = [&](const int8_t* q, const float* scale, const int32_t* sum) {
        for (int64_t i = 0; i < rows.ld; ++i) y.push_back(q[i]);
        y.insert(y.end(), scale, scale + rows.groups(how.group_k));
        for (int64_t i = 0; i < rows.groups(how.group_k ? kSumK : 0); ++i)
            y.push_back(static_cast<float>(sum[i]));
    };
    plane(a.yq, a.x_scale, a.x_sum);
    if (planes == 2) plane(a.yq_low, a.x_scale_low, a.x_sum_low);
    found.add(what, y);
}

void check_rowwise(Findings& found, Random& random) {
    found.begin("rowwise");
    const auto norm = random.floats(512), signs = random.floats(512);
    Floats one(512);
    for (size_t i = 0; i < one.size(); ++i) one[i] = signs[i] < 0 ? -1.0f : 1.0f;
    for (const int64_t width : {16, 63, 301, 512})
        for (int glu = 0; glu <= static_cast<int>(Glu::kClamped); ++glu)
            for (const int64_t group_k : {0, 32, 256})
                for (const bool normed : {false, true}) {
                    RowwiseArgs a{};
                    a.glu = static_cast<Glu>(glu);
                    a.ungated = width == 63 && normed;
                    a.limit = 2.0f;
                    a.norm = normed ? norm.data() : nullptr;
                    a.eps = 1e-5f;
                    a.group_k = group_k;
                    const std::string what = std::to_string(width) + ", glu " + std::to_string(glu);
                    const int planes = normed ? 2 : 1;
                    check_rowwise(found, random, a, width, planes, what);
                    if (width % 16) continue;
                    a.hadamard_block = 16;
                    a.signs = group_k ? one.data() : nullptr;
                    a.signs_last = normed;
                    check_rowwise(found, random, a, width, planes, what + ", hadamard");
                }
}

// Calls run(x) with a copy of x, and takes what it leaves there. It returns false where a value was not finite.
template <class Run>
void in_place(Findings& found, const std::string& what, const Floats& x, Run run) {
    Floats y = x;
    if (run(y.data()))
        found.add(what, y);
    else
        found.wrong(what);
}

void check_layer_norm(Findings& found, Random& random) {
    found.begin("layer_norm");
    const auto weight = random.floats(301), bias = random.floats(301);
    for (const int64_t width : {8, 61, 301})
        for (const bool biased : {false, true})
            in_place(found, std::to_string(width), random.floats(width, 3.0f), [&](float* x) {
                const Floats from(x, x + width);
                return found.unit.layer_norm(
                    {from.data(), weight.data(), biased ? bias.data() : nullptr, width, 1e-5, x});
            });
}

void check_rotations(Findings& found, Random& random) {
    const auto cosine = random.floats(64), sine = random.floats(64);
    found.begin("rope");
    for (const bool interleaved : {false, true})
        for (const int rotary : {16, 32, 64, 128})
            in_place(found, std::to_string(rotary), random.floats(3 * 128), [&](float* x) {
                return found.unit.rope(
                    {x, cosine.data(), sine.data(), 3, 128, rotary, interleaved});
            });
    found.begin("cap");
    for (const int64_t count : {16, 100, 333})
        in_place(found, std::to_string(count), random.floats(count, 40.0f), [&](float* x) {
            found.unit.cap({x, count, 30.0f});
            return true;
        });
}

void check_conv(Findings& found, Random& random) {
    constexpr int64_t kTokens = 5, kChannels = 48;
    found.begin("conv");
    const auto weight = random.floats(4 * kChannels), state = random.floats(3 * kChannels);
    const auto bias = random.floats(kChannels), gates = random.floats(2 * kTokens * kChannels);
    for (const bool fresh : {false, true})
        for (const bool gated : {false, true})
            for (const bool biased : {false, true})
                in_place(found, gated ? "gated" : "silu", random.floats(kTokens * kChannels),
                         [&](float* x) {
                             Floats before = state;
                             const float* first = gated ? gates.data() : nullptr;
                             found.unit.conv({x, first, gated ? first + kTokens * kChannels : first,
                                              kChannels, kTokens, kChannels, weight.data(),
                                              biased ? bias.data() : nullptr, kChannels, 4,
                                              before.data(), fresh, x, kChannels, false});
                             for (size_t i = 0; i < before.size(); ++i)
                                 x[i % kChannels] += before[i];
                             return true;
                         });
}

void check_recurrence(Findings& found, Random& random) {
    constexpr int64_t kTokens = 5, kK = 32, kColumns = 40, kLd = 3 * kK;
    found.begin("gates");
    const auto rate = random.floats(16), bias = random.floats(16);
    for (const float strength : {1.0f, 2.0f})
        in_place(found, "gates", random.floats(4 * kK + 32), [&](float* x) {
            return found.unit.gates({x, x + 2 * kK, x + 4 * kK, x + 4 * kK + 16, rate.data(),
                                     bias.data(), 2, 16, kK, 16, strength});
        });
    found.begin("recurrence");
    const auto q = random.floats(kTokens * kLd), k = random.floats(kTokens * kLd);
    const auto v = random.floats(kTokens * kLd), decay = random.floats(kTokens * kLd, 0.1f);
    const auto beta = random.floats(kTokens * kLd, 0.1f);
    const int64_t size = state_blocks(kColumns) * kK * kStateColumns;
    for (const bool fresh : {false, true})
        for (const bool rows : {false, true})
            for (const bool space : {false, true})
                in_place(found, space ? "state space" : "delta rule",
                         random.floats(size + kTokens * padded_width(kColumns)), [&](float* x) {
                             RecurrenceArgs a{};
                             a.q = q.data(), a.k = k.data(), a.v = v.data();
                             a.decay = decay.data(), a.beta = beta.data(), a.decays_rows = rows;
                             a.ldx = kLd, a.tokens = kTokens, a.k_dim = kK, a.columns = kColumns;
                             a.state = x, a.fresh = fresh;
                             a.out = x + size, a.ldo = padded_width(kColumns);
                             if (space)
                                 a.space = {decay.data(), rows ? 0.5f : 9.5f,
                                            -0.3f,        rows ? 1.0f : 0.01f,
                                            9.0f,         0.7f};
                             return found.unit.recurrence(a);
                         });
    found.begin("gated");
    const auto gate = random.floats(3 * 32), norm = random.floats(3 * 32);
    for (const bool silu : {false, true})
        for (const bool single : {false, true})
            for (const bool first : {false, true})
                in_place(found, "gated", random.floats(3 * 32), [&](float* x) {
                    const Floats from(x, x + 3 * 32);
                    GatedArgs a{};
                    a.x = from.data(), a.gate = gate.data(), a.heads = 3, a.head_dim = 32;
                    a.gate_stride = single ? 1 : 32, a.silu = silu, a.single = single;
                    a.norm = silu ? norm.data() : nullptr, a.norm_stride = first ? 32 : 0;
                    a.eps = 1e-6f, a.y = x, a.y_stride = 32, a.first = first;
                    return found.unit.gated(a);
                });
}

void check_low_rank(Findings& found, Random& random) {
    constexpr int64_t kColumns = 37, kBlocks = 3, kLd = kBlocks * kRowBlock;
    found.begin("low_rank");
    const auto tiles = random.floats(kLd * kColumns);
    for (const int64_t tokens : {1, 2, 5, 8, 11})
        for (const bool adds : {false, true})
            in_place(
                found, std::to_string(tokens), random.floats(tokens * (kColumns + kLd)),
                [&](float* x) {
                    found.unit.low_rank({tiles.data(), kLd - (adds ? 5 : 0), kColumns, x, kColumns,
                                         tokens, x + tokens * kColumns, kLd, adds, 0.3f});
                    return true;
                });
}

void check_channels(Findings& found, Random& random) {
    constexpr int64_t kTokens = 5, kK = 7, kChannels = 40, kLd = 48;
    const auto rate = random.floats(kLd * kK), bias = random.floats(kChannels);
    const auto skip = random.floats(kChannels), x = random.floats(kTokens * kLd);
    const auto step = random.floats(kTokens * kLd, 3.0f), gates = random.floats(kTokens * 2 * kLd);
    const auto k = random.floats(kTokens * kK), q = random.floats(kTokens * 2 * kK);
    found.begin("selective_scan");
    for (const bool fresh : {false, true})
        in_place(found, "selective scan", random.floats(kLd * kK + kTokens * kLd), [&](float* y) {
            ScanArgs a{};
            a.x = x.data(), a.step = step.data(), a.k = k.data(), a.q = q.data();
            a.ldx = kLd, a.lds = kLd, a.ldk = kK, a.ldq = 2 * kK, a.tokens = kTokens;
            a.k_dim = kK, a.channels = kChannels, a.rate = rate.data();
            a.skip = skip.data(), a.state = y, a.fresh = fresh, a.out = y + kLd * kK, a.ldo = kLd;
            return found.unit.selective_scan(a);
        });
    found.begin("rg_lru");
    for (const bool fresh : {false, true})
        in_place(found, "rg_lru", random.floats(kLd + kTokens * kLd), [&](float* y) {
            LruArgs a{};
            a.x = x.data(), a.i = gates.data(), a.r = gates.data() + kLd, a.ldx = kLd;
            a.ldg = 2 * kLd, a.tokens = kTokens, a.channels = kChannels, a.decay = skip.data();
            a.state = y, a.fresh = fresh, a.out = y + kLd, a.ldo = kLd;
            return found.unit.rg_lru(a);
        });
    found.begin("linear conv");
    const auto taps = random.floats(3 * kChannels), before = random.floats(2 * kChannels);
    in_place(found, "linear", random.floats(kTokens * kChannels), [&](float* y) {
        Floats state = before;
        ConvArgs a{};
        a.x = y, a.ldx = kChannels, a.tokens = kTokens, a.channels = kChannels;
        a.weight = taps.data(), a.bias = bias.data(), a.ldw = kChannels, a.width = 3;
        a.state = state.data(), a.y = y, a.ldy = kChannels, a.linear = true;
        found.unit.conv(a);
        return true;
    });
}

}  // namespace

void check_rows(Findings& found) {
    Random random;
    check_rowwise(found, random);
    check_layer_norm(found, random);
    check_rotations(found, random);
    check_conv(found, random);
    check_recurrence(found, random);
    check_low_rank(found, random);
    check_channels(found, random);
}

}  // namespace sterna::selfcheck
