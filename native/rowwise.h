// What happens to one token between two linear layers, fused: gate * up, RMSNorm, quantisation.
#pragma once

#include <type_traits>

#include "lanes.h"

namespace {

inline VF relu2_up(VF g, VF up) {
    const VF r = f_max(f_set1(0.0f), g);  // in this order a NaN stays one
    return f_mul(f_mul(r, r), up);
}
inline VF silu_up(VF g, VF up) {
    const VF e = f_exp(f_sub(f_set1(0.0f), g));
    return f_mul(f_div(g, f_add(f_set1(1.0f), e)), up);
}

// yf = glu(x); the tail beyond `width` is loaded from padding and masked by the caller's sums.
inline void apply_glu(const sterna::RowwiseArgs& a) {
    const float *gate = a.x, *up = a.x + a.up_offset;
    for (int64_t i = 0; i < a.width; i += kLanes) {
        float g_tail[kLanes] = {}, up_tail[kLanes] = {}, out[kLanes];
        const bool whole = i + kLanes <= a.width;
        if (!whole)
            for (int64_t j = i; j < a.width; ++j) g_tail[j - i] = gate[j], up_tail[j - i] = up[j];
        const VF g = f_load(whole ? gate + i : g_tail), u = f_load(whole ? up + i : up_tail);
        const VF y = a.glu == sterna::Glu::kRelu2 ? relu2_up(g, u) : silu_up(g, u);
        if (whole) {
            f_store(a.yf + i, y);
        } else {
            f_store(out, y);
            for (int64_t j = i; j < a.width; ++j) a.yf[j] = out[j - i];
        }
    }
}

inline float inverse_rms(const float* x, int64_t width, float eps) {
    F16x squares = l_set1(0.0f);
    int64_t i = 0;
    for (; i + 16 <= width; i += 16) {
        const F16x v = l_load(x + i);
        squares = l_fma(v, v, squares);
    }
    if (i < width) {
        const F16x v = l_load_first(x + i, width - i, 0.0f);
        squares = l_fma(v, v, squares);
    }
    return 1.0f / __builtin_sqrtf(l_sum(squares) / static_cast<float>(width) + eps);
}

// False: the sum of squares is not finite, so a value was not or was above 1e19.
inline bool apply_norm(const sterna::RowwiseArgs& a, const float* x) {
    const float inverse = inverse_rms(x, a.width, a.eps);
    int64_t i = 0;
    for (; i + kLanes <= a.width; i += kLanes)
        f_store(a.yf + i, f_mul(f_mul(f_load(x + i), f_set1(inverse)), f_load(a.norm + i)));
    for (; i < a.width; ++i) a.yf[i] = x[i] * inverse * a.norm[i];
    return inverse > 0.0f;  // 1 / sqrt(inf) is 0, and NaN compares false
}

// max |y| as the bits of a float: an integer maximum does not lose a NaN.
inline int32_t absmax_bits(const float* y, int64_t width) {
    VI best = i_set1(0);
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes)
        best = i_max(best, i_and(i_bits(f_load(y + i)), i_set1(0x7FFFFFFF)));
    int32_t lanes[kLanes], m = 0, bits;
    i_store(lanes, best);
    for (int j = 0; j < kLanes; ++j) m = lanes[j] > m ? lanes[j] : m;
    for (; i < width; ++i) {
        __builtin_memcpy(&bits, y + i, 4);
        bits &= 0x7FFFFFFF;
        m = bits > m ? bits : m;
    }
    return m;
}

// Symmetric int8 per token: q = round(y * (127 / max|y|)), half to even; scale max|y| / 127.
inline void quantize(const sterna::RowwiseArgs& a, float absmax) {
    absmax = absmax > 1e-5f ? absmax : 1e-5f;
    const VF inverse = f_set1(127.0f / absmax);
    VI sum = i_set1(0);
    int32_t lanes[kLanes], total = 0;
    float tail[kLanes] = {};
    const int64_t padded = (a.width + sterna::kPad - 1) / sterna::kPad * sterna::kPad;
    for (int64_t i = 0; i < padded; i += kLanes) {
        const bool whole = i + kLanes <= a.width;
        if (!whole)
            for (int64_t j = 0; j < kLanes; ++j) tail[j] = i + j < a.width ? a.yf[i + j] : 0.0f;
        // |y| * (127 / absmax) may round to a little over 127, never to 127.5: no clamp is needed.
        const VI q = i_round(f_mul(f_load(whole ? a.yf + i : tail), inverse));
        sum = i_add(sum, q);
        i_store_i8(a.yq + i / 64 * a.yq_stride + i % 64, q);
    }
    i_store(lanes, sum);
    for (int j = 0; j < kLanes; ++j) total += lanes[j];
    *a.x_sum = total;
    *a.x_scale = absmax / 127.0f;
}

bool rowwise(const sterna::RowwiseArgs& a) {
    const float* x = a.x;
    if (a.glu != sterna::Glu::kNone) {
        apply_glu(a);
        x = a.yf;
    }
    if (a.norm) {
        if (!apply_norm(a, x)) return false;
    } else if (x != a.yf) {
        __builtin_memcpy(a.yf, x, static_cast<size_t>(a.width) * 4);
    }
    if (!a.yq) return true;
    const int32_t bits = absmax_bits(a.yf, a.width);
    if (bits >= 0x7F800000) return false;
    float absmax;
    __builtin_memcpy(&absmax, &bits, 4);
    quantize(a, absmax);
    return true;
}

// False: a rotated value is not finite.
bool rope(const sterna::RopeArgs& a) {
    const int half = a.head_dim / 2, stride = a.interleaved ? 2 : 1, far = a.interleaved ? 1 : half;
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

// Sixteen values as a page holds them; head_dim is a multiple of 16.
template <bool kF16>
inline void to_page(const float* x, void* out) {
    for (int i = 0; i < 16; i += kLanes) {
        if constexpr (kF16) {
            f_store_f16(static_cast<uint16_t*>(out) + i, f_load(x + i));
        } else {
            f_store(static_cast<float*>(out) + i, f_load(x + i));
        }
    }
}

template <bool kF16>
inline void store_position(const sterna::KvStoreArgs& a) {
    using Element = std::conditional_t<kF16, uint16_t, float>;
    constexpr int P = sterna::kPagePositions;
    const int64_t hd = a.head_dim, block = a.position_in_page / 16, lane = a.position_in_page % 16;
    for (int64_t h = 0; h < a.n_kv_heads; ++h) {
        auto* keys = reinterpret_cast<Element*>(a.k_page) + (h * (P / 16) + block) * hd * 16 + lane;
        auto* values = reinterpret_cast<Element*>(a.v_page) + (h * P + a.position_in_page) * hd;
        for (int64_t d = 0; d < hd; d += 16) {
            Element k[16];
            to_page<kF16>(a.k + h * hd + d, k);
            for (int i = 0; i < 16; ++i) keys[(d + i) * 16] = k[i];  // a key is a lane
            to_page<kF16>(a.v + h * hd + d, values + d);
        }
    }
}

// False: a key or value is not finite, or not in f16.
bool kv_store(const sterna::KvStoreArgs& a) {
    a.f16 ? store_position<true>(a) : store_position<false>(a);
    // 65520 and above round to infinity in f16.
    const int32_t limit = a.f16 ? 0x477FF000 : 0x7F800000;
    const int64_t width = static_cast<int64_t>(a.n_kv_heads) * a.head_dim;
    return absmax_bits(a.k, width) < limit && absmax_bits(a.v, width) < limit;
}

}  // namespace
