// The operations on one token between two linear layers, fused: gate * up, RMSNorm, Hadamard transform, quantisation.
#pragma once
#include "butterflies.h"
#include "lanes.h"
#include "units/kernel_table.h"
#include "vocabulary.h"

namespace {

inline VF relu2_up(VF g, VF up) {
    const VF r = f_max(f_set1(0.0f), g);  // in this order a NaN stays one
    return f_mul(f_mul(r, r), up);
}
// In these orders a NaN stays one.
inline VF gate_within(VF g, VF limit) { return f_min(limit, g); }
inline VF up_within(VF up, VF limit) { return f_max(f_sub(f_set1(0.0f), limit), f_min(limit, up)); }
inline VF silu_up(VF g, VF up, VF limit) {
    return f_mul(f_silu(gate_within(g, limit)), up_within(up, limit));
}
inline VF clamped_up(VF g, VF up, VF limit) {
    g = gate_within(g, limit);
    up = up_within(up, limit);
    const VF e = f_exp(f_mul(g, f_set1(-1.702f)));
    return f_mul(f_div(g, f_add(f_set1(1.0f), e)), f_add(up, f_set1(1.0f)));
}

template <sterna::Glu kGlu>
inline F16x glu_up(F16x g, F16x up, [[maybe_unused]] float limit) {
    F16x y;
    for (int i = 0; i < 16 / kLanes; ++i) {
        if constexpr (kGlu == sterna::Glu::kRelu2) {
            y.v[i] = relu2_up(g.v[i], up.v[i]);
        } else if constexpr (kGlu == sterna::Glu::kSilu) {
            y.v[i] = silu_up(g.v[i], up.v[i], f_set1(limit));
        } else if constexpr (kGlu == sterna::Glu::kGelu) {
            y.v[i] = f_mul(f_gelu(g.v[i]), up.v[i]);
        } else if constexpr (kGlu == sterna::Glu::kGeluTanh) {
            y.v[i] = f_mul(f_gelu_tanh(g.v[i]), up.v[i]);
        } else {
            y.v[i] = clamped_up(g.v[i], up.v[i], f_set1(limit));
        }
    }
    return y;
}

// A by-product of a row's activation: its sum of squares, for a norm, or else its max |yf| as bits.
struct Activated {
    float squares;
    int32_t absmax;
};

// yf = glu(x), or x where there is none.
template <sterna::Glu kGlu>
inline Activated activate_as(const sterna::RowwiseArgs& a) {
    constexpr bool kNone = kGlu == sterna::Glu::kNone;
    const float *gate = a.x, *up = a.x + a.up_offset;
    const bool copy = kNone && !a.norm && a.x != a.yf;
    const F16x alone = l_set1(kGlu == sterna::Glu::kClamped ? 0.0f : 1.0f);  // times one is exact
    F16x squares = l_set1(0.0f);
    AbsMax most;
    sixteens(a.width, [&](int64_t i, auto part) {
        F16x v = part.load(gate + i);
        if constexpr (!kNone) v = glu_up<kGlu>(v, a.ungated ? alone : part.load(up + i), a.limit);
        if (!kNone || copy) part.store(a.yf + i, v);
        if (a.norm) {
            squares = l_fma(v, v, squares);
        } else {
            most.add(v);
        }
    });
    return a.norm ? Activated{l_sum(squares), 0} : Activated{0.0f, most.bits()};
}
inline Activated activate(const sterna::RowwiseArgs& a) {
    using sterna::Glu;
    return a.glu == Glu::kNone       ? activate_as<Glu::kNone>(a)
           : a.glu == Glu::kRelu2    ? activate_as<Glu::kRelu2>(a)
           : a.glu == Glu::kSilu     ? activate_as<Glu::kSilu>(a)
           : a.glu == Glu::kGelu     ? activate_as<Glu::kGelu>(a)
           : a.glu == Glu::kGeluTanh ? activate_as<Glu::kGeluTanh>(a)
                                     : activate_as<Glu::kClamped>(a);
}

// yf = x / rms(x) * norm; returns max |yf| as bits.
inline int32_t normalise(const sterna::RowwiseArgs& a, const float* x, float inverse) {
    AbsMax most;
    sixteens(a.width, [&](int64_t i, auto part) {
        const F16x y = l_mul(l_mul(part.load(x + i), l_set1(inverse)), part.load(a.norm + i));
        part.store(a.yf + i, y);
        most.add(y);
    });
    return most.bits();
}

// yf times its signs and the root of a block's inverse, before or after the butterflies. The root is rounded, where a
// block is no power of four, and a product with a sign is exact.
inline void scale_signed(const sterna::RowwiseArgs& a, bool with_signs, float factor) {
    for (int64_t i = 0; i < a.width; i += kLanes) {
        VF y = f_load(a.yf + i);
        if (with_signs) y = f_mul(y, f_load(a.signs + i));
        f_store(a.yf + i, f_mul(y, f_set1(factor)));
    }
}
inline void transform(const sterna::RowwiseArgs& a) {
    const bool first = a.signs && !a.signs_last, last = a.signs && a.signs_last;
    if (first) scale_signed(a, true, 1.0f);
    hadamard(a.yf, a.width, a.hadamard_block);
    scale_signed(a, last, 1.0f / __builtin_sqrtf(static_cast<float>(a.hadamard_block)));
}

// Values [begin, end) of the row, the largest of them absmax, to int8, half to even: q = round(127 y / absmax), whose
// sum is the `at`-th; kTwo: and what that leaves of y likewise, in steps of a kLowSteps-th.
template <bool kTwo>
inline void quantize(const sterna::RowwiseArgs& a, int64_t begin, int64_t end, float absmax,
                     int64_t at) {
    const VF inverse = f_set1(127.0f / absmax), scale = f_set1(absmax / 127.0f);
    const VF inverse_low = f_set1(127.0f * sterna::kLowSteps / absmax);
    VI sum = i_set1(0), sum_low = i_set1(0);
    float tail[kLanes] = {};
    for (int64_t i = begin; i < end; i += kLanes) {
        const bool whole = i + kLanes <= a.width;
        if (!whole)
            for (int64_t j = 0; j < kLanes; ++j) tail[j] = i + j < a.width ? a.yf[i + j] : 0.0f;
        // |y| * (127 / max|y|) may round to a little over 127, never to 127.5: no clamp is needed.
        const VF y = f_load(whole ? a.yf + i : tail);
        const VI q = i_round(f_mul(y, inverse));
        const int64_t to = i / 64 * a.yq_stride + i % 64;
        sum = i_add(sum, q);
        i_store_i8(a.yq + to, q);
        if constexpr (kTwo) {  // likewise at most a little over 127
            const VI low = i_round(f_mul(f_sub(y, f_mul(f_from_i(q), scale)), inverse_low));
            sum_low = i_add(sum_low, low);
            i_store_i8(a.yq_low + to, low);
        }
    }
    a.x_sum[at] = i_sum(sum);
    if constexpr (kTwo) a.x_sum_low[at] = i_sum(sum_low);
}
inline void scale_of(const sterna::RowwiseArgs& a, float absmax, int64_t at) {
    a.x_scale[at] = absmax / 127.0f;
    if (a.yq_low) a.x_scale_low[at] = a.x_scale[at] / sterna::kLowSteps;
}

// Symmetric int8 per token, or per group of values; `bits` is max |y| of all of them.
template <bool kTwo>
inline void quantize(const sterna::RowwiseArgs& a, int32_t bits) {
    const int64_t padded = (a.width + sterna::kPad - 1) / sterna::kPad * sterna::kPad;
    float absmax;
    if (!a.group_k) {
        __builtin_memcpy(&absmax, &bits, 4);
        absmax = absmax > 1e-5f ? absmax : 1e-5f;
        quantize<kTwo>(a, 0, padded, absmax, 0);
        scale_of(a, absmax, 0);
        return;
    }
    for (int64_t i = 0; i < padded; i += a.group_k) {
        const int64_t rest = a.width - i, end = padded - i < a.group_k ? padded : i + a.group_k;
        bits = rest <= 0 ? 0 : absmax_bits(a.yf + i, rest < a.group_k ? rest : a.group_k);
        __builtin_memcpy(&absmax, &bits, 4);
        // 1e-30: steps of both planes over it are finite, and the smallest of them is no denormal
        absmax = absmax > 1e-30f ? absmax : 1e-30f;
        for (int64_t k = i; k < end; k += sterna::kSumK)
            quantize<kTwo>(a, k, k + sterna::kSumK, absmax, k / sterna::kSumK);
        scale_of(a, absmax, i / a.group_k);
    }
}

// False, where it normalises or rounds: a value is not finite, or, before a norm, above 1e19, so that the
// sum of squares is not.
bool rowwise(const sterna::RowwiseArgs& a) {
    const auto [squares, absmax] = activate(a);
    int32_t bits = absmax;
    if (a.norm) {
        const float* x = a.glu == sterna::Glu::kNone ? a.x : a.yf;
        const float inverse = 1.0f / __builtin_sqrtf(squares / static_cast<float>(a.width) + a.eps);
        bits = normalise(a, x, inverse);
        if (!(inverse > 0.0f)) return false;  // 1 / sqrt(inf) is 0, and NaN compares false
    }
    if (a.hadamard_block) transform(a);
    if (!a.yq) return true;
    if (a.hadamard_block) bits = absmax_bits(a.yf, a.width);
    if (bits >= 0x7F800000) return false;
    if (a.yq_low) {
        quantize<true>(a, bits);
    } else {
        quantize<false>(a, bits);
    }
    return true;
}

// False: a rotated value is not finite.
bool rope(const sterna::RopeArgs& a) {
    const int half = a.rotary_dim / 2, stride = a.interleaved ? 2 : 1;
    const int far = a.interleaved ? 1 : half;
    for (int h = 0; h < a.n_heads; ++h) {
        float* x = a.x + static_cast<int64_t>(h) * a.head_dim;
        int i = 0;
        for (; !a.interleaved && i + kLanes <= half; i += kLanes) {
            const VF u = f_load(x + i), v = f_load(x + half + i);
            const VF c = f_load(a.cos + i), s = f_load(a.sin + i);
            f_store(x + i, f_sub(f_mul(u, c), f_mul(v, s)));
            f_store(x + half + i, f_add(f_mul(v, c), f_mul(u, s)));
        }
        for (; i < half; ++i) {
            float *p = x + stride * i, *q = p + far;
            const float u = *p, v = *q, c = a.cos[i], s = a.sin[i];
            *p = u * c - v * s;
            *q = v * c + u * s;
        }
    }
    return absmax_bits(a.x, static_cast<int64_t>(a.n_heads) * a.head_dim) < 0x7F800000;
}

void cap(const sterna::CapArgs& a) {
    const F16x cap = l_set1(a.cap), inverse = l_set1(1.0f / a.cap);
    sixteens(a.count, [&](int64_t i, auto part) {
        part.store(a.x + i, l_cap(part.load(a.x + i), cap, inverse));
    });
}

}  // namespace
