// What happens to one token between two linear layers, fused: gate * up, RMSNorm, quantisation.
#pragma once
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

}  // namespace
