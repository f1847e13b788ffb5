// Recurrent layers: a causal convolution of each channel, between two gates or followed by SiLU, and for each head a
// gated delta rule (arXiv 2412.06464; with a decay of each channel, arXiv 2510.26692) or a state space (Mamba-2, arXiv
// 2405.21060); or for each channel a state space of its own (Mamba, arXiv 2312.00752) or an RG-LRU (arXiv 2402.19427).
//
// Sums run over the tokens of a sequence, over k_dim and over the taps in an order of their own, and a lane is a
// channel or a column: so neither the unit nor how the work is split has a part in a bit.
#pragma once
#include "lanes.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

template <bool kGated>
inline void convolve(const sterna::ConvArgs& a) {
    constexpr int64_t kAtOnce = 256;  // channels whose last inputs stay in L1
    const int64_t before = a.width - 1;
    float window[sterna::kMaxConvWidth][kAtOnce];  // the input of token t is at t mod `before`
    for (int64_t from = 0; from < a.channels; from += kAtOnce) {
        const int64_t count = a.channels - from < kAtOnce ? a.channels - from : kAtOnce;
        const float* weight = a.weight + from;
        float* state = a.state + from;
        for (int64_t i = 0; i < before; ++i)
            for (int64_t c = 0; c < count; ++c)
                window[i][c] = a.fresh ? 0.0f : state[i * a.ldw + c];
        for (int64_t t = 0; t < a.tokens; ++t) {
            const int64_t at = t * a.ldx + from;
            float* out = a.y + t * a.ldy + from;
            const float* inputs[sterna::kMaxConvWidth];  // the oldest first
            for (int64_t i = 0; i < before; ++i) inputs[i] = window[(t + i) % before];
            float* oldest = before ? window[t % before] : nullptr;
            sixteens(count, [&](int64_t c, auto part) {
                F16x now = part.load(a.x + at + c);
                if constexpr (kGated) now = l_mul(part.load(a.before + at + c), now);
                F16x y = a.bias ? part.load(a.bias + from + c) : l_set1(0.0f);
                for (int64_t i = 0; i < before; ++i)
                    y = l_fma(part.load(weight + i * a.ldw + c), part.load(inputs[i] + c), y);
                y = l_fma(part.load(weight + before * a.ldw + c), now, y);
                if (oldest) part.store(oldest + c, now);
                if constexpr (kGated)
                    y = l_mul(part.load(a.after + at + c), y);
                else if (!a.linear)
                    y = l_silu(y);
                part.store(out + c, y);
            });
        }
        for (int64_t i = 0; i < before; ++i)
            for (int64_t c = 0; c < count; ++c)
                state[i * a.ldw + c] = window[(a.tokens + i) % before][c];
    }
}

void conv(const sterna::ConvArgs& a) { a.before ? convolve<true>(a) : convolve<false>(a); }

// exp(x) as a state decays; 2^-80 changes only a decay next to 0, so that a state that forgets all has no denormals.
inline F16x l_decay(F16x x) { return l_max(l_set1(0.0f), l_sub(l_exp(x), l_set1(0x1p-80f))); }

// x <- factor x / |x|; false: x is not finite, or so large that the sum of squares is not.
inline bool to_length(float* x, int64_t width, float factor) {
    F16x squares = l_set1(0.0f);
    sixteens(width, [&](int64_t i, auto part) {
        const F16x v = part.load(x + i);
        squares = l_fma(v, v, squares);
    });
    const float inverse = 1.0f / __builtin_sqrtf(l_sum(squares) + 1e-6f);  // transformers' l2norm
    const F16x by = l_set1(inverse * factor);
    sixteens(width, [&](int64_t i, auto part) { part.store(x + i, l_mul(part.load(x + i), by)); });
    return inverse > 0.0f;
}

// False: q or k is not finite.
bool gates(const sterna::GatesArgs& a) {
    const float root = 1.0f / __builtin_sqrtf(static_cast<float>(a.k_dim));
    bool finite = true;
    for (int64_t h = 0; h < a.k_heads; ++h) {
        finite = to_length(a.q + h * a.k_dim, a.k_dim, root) && finite;
        finite = to_length(a.k + h * a.k_dim, a.k_dim, 1.0f) && finite;
    }
    sixteens(a.decays, [&](int64_t i, auto part) {
        const F16x step = l_softplus(l_add(part.load(a.a + i), part.load(a.bias + i)));
        part.store(a.a + i, l_decay(l_mul(part.load(a.rate + i), step)));
    });
    const F16x strength = l_set1(a.strength);
    sixteens(a.v_heads, [&](int64_t h, auto part) {
        part.store(a.b + h, l_mul(strength, l_sigmoid(part.load(a.b + h))));
    });
    return finite;
}

// Row k goes to the sum k mod the number of sums: each hides the others' latency.
template <int kSums>
struct Sums {
    F16x part[kSums];
    Sums() {
        for (F16x& p : part) p = l_set1(0.0f);
    }
    F16x total() {
        for (int n = kSums / 2; n > 0; n /= 2)
            for (int i = 0; i < n; ++i) part[i] = l_add(part[i], part[i + n]);
        return part[0];
    }
};
template <int kSums, class Row>
inline void each_row(int64_t k_dim, Row row) {
    int64_t i = 0;
    for (; i + kSums <= k_dim; i += kSums)
        for (int j = 0; j < kSums; ++j) row(i + j, j);
    for (int j = 0; i + j < k_dim; ++j) row(i + j, j);
}
constexpr int kDeltaSums = 2;  // of two products at once
constexpr int kSpaceSums = 4;

// How a token's state decays: all of it alike, or each row by itself. (decay S)^T k is decay (S^T k) or S^T (decay k).
struct HeadDecay {
    F16x all;
    explicit HeadDecay(const float* of) : all(l_set1(of[0])) {}
    explicit HeadDecay(F16x of) : all(of) {}
    F16x row(int64_t) const { return all; }
    F16x key(const float* k, int64_t i) const { return l_set1(k[i]); }
    F16x recalled(F16x sum) const { return l_mul(all, sum); }
};
struct RowDecays {
    const float* rows;
    explicit RowDecays(const float* of) : rows(of) {}
    F16x row(int64_t i) const { return l_set1(rows[i]); }
    F16x key(const float* k, int64_t i) const { return l_mul(row(i), l_set1(k[i])); }
    F16x recalled(F16x sum) const { return sum; }
};

// S^T of the decayed keys of a block of columns.
template <class Decay>
inline F16x recalled(const float* state, const float* k, int64_t k_dim, const Decay& decay) {
    Sums<kDeltaSums> sums;
    each_row<kDeltaSums>(k_dim, [&](int64_t i, int j) {
        sums.part[j] =
            l_fma(decay.key(k, i), l_load(state + i * sterna::kStateColumns), sums.part[j]);
    });
    return sums.total();
}

// S <- decay S + k delta^T; returns S^T q, and in `next` what the token that follows recalls, if there is one.
template <int kSums, bool kNext, class Decay>
inline F16x learn(float* state, const float* q, const float* k, const float* next_k, int64_t k_dim,
                  const Decay& decay, const Decay& next_decay, F16x delta, F16x& next) {
    Sums<kSums> out, then;
    each_row<kSums>(k_dim, [&](int64_t i, int j) {
        float* at = state + i * sterna::kStateColumns;
        const F16x s = l_fma(l_set1(k[i]), delta, l_mul(decay.row(i), l_load(at)));
        l_store(at, s);
        out.part[j] = l_fma(l_set1(q[i]), s, out.part[j]);
        if constexpr (kNext) then.part[j] = l_fma(next_decay.key(next_k, i), s, then.part[j]);
    });
    if constexpr (kNext) next = then.total();
    return out.total();
}

// q and k of so many tokens stay in the cache while the blocks of columns pass over them.
constexpr int64_t kRecurrenceTokens = 16;

// The gated delta rule over tokens [begin, end) and the block of columns at `column`.
template <class Decay, class Part>
inline void delta_rule(const sterna::RecurrenceArgs& a, float* state, int64_t column, int64_t begin,
                       int64_t end, Part part) {
    const auto decay_of = [&](int64_t t) { return Decay(a.decay + t * a.ldx); };
    F16x known = recalled(state, a.k + begin * a.ldx, a.k_dim, decay_of(begin));
    for (int64_t t = begin; t < end; ++t) {
        const int64_t at = t * a.ldx, dim = a.k_dim;
        const Decay decay = decay_of(t);
        const F16x rest = l_sub(part.load(a.v + at + column), decay.recalled(known));
        const F16x delta = l_mul(l_set1(a.beta[at]), rest);
        const float *q = a.q + at, *k = a.k + at;
        F16x out;
        if (t + 1 < end)
            out = learn<kDeltaSums, true>(state, q, k, k + a.ldx, dim, decay, decay_of(t + 1),
                                          delta, known);
        else
            out = learn<kDeltaSums, false>(state, q, k, k, dim, decay, decay, delta, known);
        part.store(a.out + t * a.ldo + column, out);
    }
}

// The steps of a state space for a few tokens.
struct SpaceSteps {
    float size[kRecurrenceTokens] = {}, decay[kRecurrenceTokens] = {};

    // False: a step is not finite.
    bool read(const sterna::RecurrenceArgs& a, int64_t begin, int64_t end) {
        const sterna::StateSpace& s = a.space;
        float steps[kRecurrenceTokens] = {};
        for (int64_t t = begin; t < end; ++t) steps[t - begin] = s.step[t * a.ldx];
        const F16x step = l_load(steps);
        const F16x h =
            l_max(l_set1(s.least), l_min(l_set1(s.most), l_softplus(l_add(step, l_set1(s.bias)))));
        l_store(size, h);
        l_store(decay, l_decay(l_mul(l_set1(s.rate), h)));
        return l_sum(l_sub(step, step)) == 0.0f;
    }
};

// Likewise a state space.
template <class Part>
inline void state_space(const sterna::RecurrenceArgs& a, const SpaceSteps& steps, float* state,
                        int64_t column, int64_t begin, int64_t end, Part part) {
    for (int64_t t = begin; t < end; ++t) {
        const float *q = a.q + t * a.ldx, *k = a.k + t * a.ldx;
        const F16x v = part.load(a.v + t * a.ldx + column);
        const HeadDecay decay(l_set1(steps.decay[t - begin]));
        const F16x delta = l_mul(l_set1(steps.size[t - begin]), v);
        F16x none;
        const F16x out =
            learn<kSpaceSums, false>(state, q, k, k, a.k_dim, decay, decay, delta, none);
        part.store(a.out + t * a.ldo + column, l_fma(l_set1(a.space.skip), v, out));
    }
}

// False: a step of a state space is not finite.
bool recurrence(const sterna::RecurrenceArgs& a) {
    bool finite = true;
    for (int64_t begin = 0; begin < a.tokens; begin += kRecurrenceTokens) {
        const int64_t rest = a.tokens - begin;
        const int64_t end = begin + (rest < kRecurrenceTokens ? rest : kRecurrenceTokens);
        SpaceSteps steps;
        if (a.space.step) finite = steps.read(a, begin, end) && finite;
        sixteens(a.columns, [&](int64_t column, auto part) {
            float* state = a.state + column * a.k_dim;
            if (a.fresh && begin == 0)
                for (int64_t i = 0; i < a.k_dim; ++i)
                    l_store(state + i * sterna::kStateColumns, l_set1(0.0f));
            if (a.space.step)
                state_space(a, steps, state, column, begin, end, part);
            else if (a.decays_rows)
                delta_rule<RowDecays>(a, state, column, begin, end, part);
            else
                delta_rule<HeadDecay>(a, state, column, begin, end, part);
        });
    }
    return finite;
}

// How each element of a block of channels decays.
struct ElementDecays {
    const float* rates;  // [k_dim][kStateColumns]
    F16x size;
    F16x row(int64_t i) const {
        return l_decay(l_mul(l_load(rates + i * sterna::kStateColumns), size));
    }
};

// x - x of all that it has seen, so 0 if that is finite.
struct Unfinite {
    F16x sum = l_set1(0.0f);
    void see(F16x x) { sum = l_add(sum, l_sub(x, x)); }
    bool none() const { return l_sum(sum) == 0.0f; }
};

// False: a step is not finite.
bool selective_scan(const sterna::ScanArgs& a) {
    bool finite = true;
    sixteens(a.channels, [&](int64_t c, auto part) {
        float* state = a.state + c * a.k_dim;
        const F16x skip = part.load(a.skip + c);
        if (a.fresh)
            for (int64_t i = 0; i < a.k_dim; ++i)
                l_store(state + i * sterna::kStateColumns, l_set1(0.0f));
        Unfinite steps;
        for (int64_t t = 0; t < a.tokens; ++t) {
            const F16x step = part.load(a.step + t * a.lds + c), x = part.load(a.x + t * a.ldx + c);
            steps.see(step);
            const F16x size = l_softplus(step);
            const ElementDecays decay{a.rate + c * a.k_dim, size};
            const float *q = a.q + t * a.ldq, *k = a.k + t * a.ldk;
            F16x none;
            const F16x out = learn<kSpaceSums, false>(state, q, k, k, a.k_dim, decay, decay,
                                                      l_mul(size, x), none);
            part.store(a.out + t * a.ldo + c, l_fma(skip, x, out));
        }
        finite = steps.none() && finite;
    });
    return finite;
}

// False: a gate is not finite.
bool rg_lru(const sterna::LruArgs& a) {
    bool finite = true;
    sixteens(a.channels, [&](int64_t c, auto part) {
        const F16x rate = l_mul(l_set1(-8.0f), l_softplus(part.load(a.decay + c)));
        const F16x one = l_set1(1.0f), zero = l_set1(0.0f);
        F16x h = l_load(a.state + c);
        Unfinite gates;
        for (int64_t t = 0; t < a.tokens; ++t) {
            const F16x i = part.load(a.i + t * a.ldg + c), r = part.load(a.r + t * a.ldg + c);
            gates.see(i), gates.see(r);
            const F16x input = l_mul(l_sigmoid(i), part.load(a.x + t * a.ldx + c));
            const F16x log = l_mul(rate, l_sigmoid(r));
            // 1 - a^2 = 2 t / (1 + t), t = tanh(-log a), in which nothing cancels where a is next to 1.
            const F16x th = l_tanh(l_sub(zero, log));
            const F16x rest = l_sqrt(l_div(l_add(th, th), l_add(one, th)));
            h = a.fresh && t == 0 ? input : l_fma(l_decay(log), h, l_mul(rest, input));
            part.store(a.out + t * a.ldo + c, h);
        }
        l_store(a.state + c, h);
        finite = gates.none() && finite;
    });
    return finite;
}

// 1 / rms of the input of a head's norm; 1 without a norm.
template <class Gate>
inline float inverse_rms(const sterna::GatedArgs& a, const float* x, Gate gate_of) {
    if (!a.norm) return 1.0f;
    F16x squares = l_set1(0.0f);
    sixteens(a.head_dim, [&](int64_t i, auto part) {
        F16x v = part.load(x + i);
        if (a.first) v = l_mul(v, gate_of(i, part));
        squares = l_fma(v, v, squares);
    });
    const float mean = l_sum(squares) / static_cast<float>(a.head_dim);
    return 1.0f / __builtin_sqrtf(mean + a.eps);
}

// False: it normalises, and a value is not finite, or so large that the sum of squares is not.
bool gated(const sterna::GatedArgs& a) {
    bool finite = true;
    for (int64_t h = 0; h < a.heads; ++h) {
        const float *x = a.x + h * a.head_dim, *gate = a.gate + h * a.gate_stride;
        const float* norm = a.norm + h * a.norm_stride;
        const auto activated = [&](F16x g) { return a.silu ? l_silu(g) : l_sigmoid(g); };
        const F16x all = activated(l_set1(gate[0]));
        const auto gate_of = [&](int64_t i, auto part) {
            return a.single ? all : activated(part.load(gate + i));
        };
        const float inverse = inverse_rms(a, x, gate_of);
        finite = inverse > 0.0f && finite;
        sixteens(a.head_dim, [&](int64_t i, auto part) {
            F16x v = part.load(x + i);
            const F16x g = gate_of(i, part);
            if (a.first) v = l_mul(v, g);
            if (a.norm) v = l_mul(l_mul(v, l_set1(inverse)), part.load(norm + i));
            part.store(a.y + h * a.y_stride + i, a.first ? v : l_mul(v, g));
        });
    }
    return finite;
}

}  // namespace
