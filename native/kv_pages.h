// The pages of the KV cache, 64 positions of every KV head:
//
//   floats  K [kv_head][position / 16][d][16]          V [kv_head][position][d]
//   int16   K [kv_head][position / 16][d / 2][16][2]   V [kv_head][position / 2][d][2]
//           and after a head's integers one float for each position, which multiplies them
//
// A key is a lane. Pairs along the axis that a product sums over suit the instructions that multiply
// and add two int16. head_dim is a multiple of 16.
#pragma once
#include <type_traits>

#include "lanes.h"

namespace {

using sterna::KvType;
constexpr int kPage = sterna::kPagePositions;

// Rounds vectors to integers in [-levels, levels], times `scale`.
struct Rounding {
    float scale = 0.0f, inverse = 0.0f;

    Rounding(const float* x, int64_t n, int levels) {
        const int32_t bits = absmax_bits(x, n);
        if (bits >= 0x7F800000) return;  // a scale of 0: whatever the integers, products are finite
        float absmax;
        __builtin_memcpy(&absmax, &bits, 4);
        absmax = absmax > 1e-30f ? absmax : 1e-30f;
        scale = absmax / static_cast<float>(levels);
        inverse = static_cast<float>(levels) / absmax;
    }
    // 16 values, half to even. |x| * inverse may round to a little over `levels`, never to half
    // more: no clamp is needed.
    void round16(const float* x, int16_t* q) const {
        for (int i = 0; i < 16; i += kLanes)
            i_store_i16(q + i, i_round(f_mul(f_load(x + i), f_set1(inverse))));
    }
};

// The multipliers of a head's positions in an int16 page.
inline int64_t scales_at(int64_t head_dim) { return kPage * head_dim * 2; }

inline void store_integers(const float* k, const float* v, int64_t position, int64_t head_dim,
                           uint8_t* k_head, uint8_t* v_head) {
    auto* keys =
        reinterpret_cast<int16_t*>(k_head) + position / 16 * head_dim * 16 + position % 16 * 2;
    auto* values = reinterpret_cast<int16_t*>(v_head) + position / 2 * head_dim * 2 + position % 2;
    const Rounding of_k(k, head_dim, sterna::kKvLevels), of_v(v, head_dim, sterna::kKvLevels);
    int16_t q[16];
    for (int64_t d = 0; d < head_dim; d += 16) {
        of_k.round16(k + d, q);
        for (int64_t i = 0; i < 16; i += 2)
            __builtin_memcpy(keys + (d + i) * 16, q + i, 2 * sizeof *q);
        of_v.round16(v + d, q);
        for (int64_t i = 0; i < 16; ++i) values[(d + i) * 2] = q[i];
    }
    reinterpret_cast<float*>(k_head + scales_at(head_dim))[position] = of_k.scale;
    reinterpret_cast<float*>(v_head + scales_at(head_dim))[position] = of_v.scale;
}

// Sixteen values as a page of floats holds them.
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
inline void store_floats(const float* k, const float* v, int64_t position, int64_t head_dim,
                         uint8_t* k_head, uint8_t* v_head) {
    using Element = std::conditional_t<kF16, uint16_t, float>;
    auto* keys = reinterpret_cast<Element*>(k_head) + position / 16 * head_dim * 16 + position % 16;
    auto* values = reinterpret_cast<Element*>(v_head) + position * head_dim;
    for (int64_t d = 0; d < head_dim; d += 16) {
        Element lanes[16];
        to_page<kF16>(k + d, lanes);
        for (int i = 0; i < 16; ++i) keys[(d + i) * 16] = lanes[i];
        to_page<kF16>(v + d, values + d);
    }
}

// False: a key or value is not finite, or not in f16.
bool kv_store(const sterna::KvStoreArgs& a) {
    auto* const store = a.type == KvType::kI16   ? store_integers
                        : a.type == KvType::kF16 ? store_floats<true>
                                                 : store_floats<false>;
    const int64_t bytes = sterna::kv_head_bytes(a.type, a.head_dim);
    for (int64_t h = 0; h < a.n_kv_heads; ++h)
        store(a.k + h * a.head_dim, a.v + h * a.head_dim, a.position_in_page, a.head_dim,
              a.k_page + h * bytes, a.v_page + h * bytes);
    // 65520 and above round to infinity in f16.
    const int32_t limit = a.type == KvType::kF16 ? 0x477FF000 : 0x7F800000;
    const int64_t width = int64_t{a.n_kv_heads} * a.head_dim;
    return absmax_bits(a.k, width) < limit && absmax_bits(a.v, width) < limit;
}

}  // namespace
