// The pages of the KV cache, 64 positions of every KV head:
//
//   floats  K [kv_head][position / 16][d][16]          V [kv_head][position][d]
//   int16   K [kv_head][position / 16][d / 2][16][2]   V [kv_head][position / 2][d][2]
//   int8    the same, rotated
//   levels  V [kv_head][position / 2][d / 16][16], bytes; rotated
//           a head's integers are followed by one float for each position, which multiplies them
//
// Levels are sixteen of the integers of int8, and a value is the index of one. Of sixteen features and two positions, in
// the order of int8, the first sixteen indices are the low halves of the bytes and the last sixteen the high ones.
//
// A key is a lane. Pairs along the axis that a product sums over suit the instructions that multiply
// and add two int16. head_dim is a multiple of 16.
//
// Rotated: a key or value x is stored as Hx / n, with H the Hadamard matrix of order n. Then an outlier, as keys have
// them, does not use up the levels of 8 bits (QuaRot, arXiv 2404.00456, section 4). A query becomes Hq, and
// (Hq)(Hk / n) = qk. An output y is returned as Hy.
#pragma once
#include <type_traits>

#include "butterflies.h"
#include "lanes.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

using sterna::KvType;
constexpr int kPage = sterna::kPagePositions;

// Rounds vectors to integers in [-levels, levels], times `scale`.
struct Rounding {
    float scale = 0.0f, inverse = 0.0f;

    Rounding() = default;
    Rounding(const float* x, int64_t n, int levels) {
        const int32_t bits = absmax_bits(x, n);
        if (bits >= 0x7F800000) return;  // scale 0: products stay finite with any integers
        float absmax;
        __builtin_memcpy(&absmax, &bits, 4);
        absmax = absmax > 1e-30f ? absmax : 1e-30f;
        scale = absmax / static_cast<float>(levels);
        inverse = static_cast<float>(levels) / absmax;
    }
    // Rounds 16 values, half to even. |x| * inverse may exceed `levels` a little, but never by a half, so no clamp is
    // needed.
    void round16(const float* x, int16_t* q) const {
        for (int i = 0; i < 16; i += kLanes)
            i_store_i16(q + i, i_round(f_mul(f_load(x + i), f_set1(inverse))));
    }
};

// The levels of kI4: those with the least squared error for vectors of 128 normal numbers, as a rotated value is nearly
// one, whose largest has the last level (Lloyd's algorithm; `tests/native/test_value_levels.py` finds them again).
constexpr int8_t kValueLevels[16] = {-127, -96, -75, -58, -43, -30, -18, -6,
                                     6,    18,  30,  43,  58,  75,  96,  127};

// The index of the level nearest to each of [-127, 127], the lower one of two.
struct NearestLevels {
    uint8_t of[255];
    constexpr NearestLevels() : of{} {
        for (int q = -127, at = 0; q <= 127; ++q) {
            while (at < 15 && kValueLevels[at + 1] - q < q - kValueLevels[at]) ++at;
            of[q + 127] = static_cast<uint8_t>(at);
        }
    }
};
constexpr NearestLevels kNearestLevels;

// What a page of integers has of two features of a key, or of a feature of two values.
template <KvType type>
struct Pair;
template <>
struct Pair<KvType::kI16> {
    using Integer = int16_t;
    Integer of[2];
};
template <>
struct Pair<KvType::kI8> {
    using Integer = int8_t;
    Integer of[2];
};
template <>
struct Pair<KvType::kI4> {
    uint8_t byte;
};

// Loads the pairs [i, i + kLanes) of sixteen as int16.
inline VP load_pairs(const Pair<KvType::kI16>* p, int i) { return i_pairs(i_load(p + i)); }
inline VP load_pairs(const Pair<KvType::kI8>* p, int i) { return i_pairs(w_load_i8(p[i].of)); }
inline VP load_pairs(const Pair<KvType::kI4>* p, int i) {
    return i_pairs(w_load_levels(kValueLevels, &p->byte, i));
}

// Returns the order of H, the largest power of two that divides head_dim.
constexpr int64_t rotated_block(int64_t head_dim) { return head_dim & -head_dim; }
inline void rotate(float* x, int64_t head_dim) { hadamard(x, head_dim, rotated_block(head_dim)); }

// Returns the factors of a head's positions in a page of integers.
inline float* scales_of(uint8_t* head, KvType type, int64_t head_dim) {
    return reinterpret_cast<float*>(head + sterna::kv_elements_bytes(type, head_dim));
}
inline const float* scales_of(const uint8_t* head, KvType type, int64_t head_dim) {
    return reinterpret_cast<const float*>(head + sterna::kv_elements_bytes(type, head_dim));
}

// Sixteen features of positions that are stored together, rounded.
using Sixteens = int16_t[sterna::kStoredTogether][16];

// To a page of keys, from `pairs` on: those of one feature pair and sixteen positions follow each other.
template <class P>
inline void put_keys(const Sixteens& q, int count, P* pairs) {
    using Integer = typename P::Integer;
    for (int i = 0; i < 8; ++i, pairs += 16)
        for (int t = 0; t < count; ++t)
            for (int j = 0; j < 2; ++j) pairs[t].of[j] = static_cast<Integer>(q[t][2 * i + j]);
}

// To a page of values, in which a position has every second element of its pair's row: both at once, where both are
// there. Another thread may write the other one.
template <class P>
inline void put_values(const Sixteens& q, int position, int count, int64_t head_dim, P* values) {
    using Integer = typename P::Integer;
    for (int t = 0; t < count;) {
        P* to = values + (position + t) / 2 * head_dim;
        const int j = (position + t) % 2;
        if (j == 0 && t + 1 < count) {
            for (int i = 0; i < 16; ++i) {
                to[i].of[0] = static_cast<Integer>(q[t][i]);
                to[i].of[1] = static_cast<Integer>(q[t + 1][i]);
            }
            t += 2;
        } else {
            for (int i = 0; i < 16; ++i) to[i].of[j] = static_cast<Integer>(q[t][i]);
            ++t;
        }
    }
}
// Of levels a position has every second byte.
inline void put_values(const Sixteens& q, int position, int count, int64_t head_dim,
                       Pair<KvType::kI4>* values) {
    for (int t = 0; t < count; ++t) {
        Pair<KvType::kI4>* to = values + (position + t) / 2 * head_dim + (position + t) % 2;
        const auto code = [&](int i) { return kNearestLevels.of[q[t][i] + 127]; };
        for (int i = 0; i < 8; ++i)
            to[2 * i].byte = static_cast<uint8_t>(code(i) | code(i + 8) << 4);
    }
}

// A head of all positions, rounded: put(d, q) stores features [d, d + 16). Factors go to `scales`.
template <KvType type, class Put>
inline void round_head(float* x, const sterna::KvStoreArgs& a, float* scales, Put put) {
    Rounding of[sterna::kStoredTogether];
    for (int t = 0; t < a.count; ++t) {
        float* const row = x + t * a.stride;
        if constexpr (sterna::kv_rotated(type)) {
            // Divide first, since the sums may be n times as large.
            const float inverse = 1.0f / static_cast<float>(rotated_block(a.head_dim));
            for (int64_t d = 0; d < a.head_dim; ++d) row[d] *= inverse;
            rotate(row, a.head_dim);
        }
        of[t] = Rounding(row, a.head_dim, sterna::kv_levels(type));
        scales[t] = of[t].scale;
    }
    for (int64_t d = 0; d < a.head_dim; d += 16) {
        Sixteens q;
        for (int t = 0; t < a.count; ++t) of[t].round16(x + t * a.stride + d, q[t]);
        put(d, q);
    }
}

template <KvType keys_type, KvType values_type>
inline void store_integers(const sterna::KvStoreArgs& a, int64_t head) {
    const int64_t hd = a.head_dim;
    const int p = a.position_in_page;
    uint8_t* const k_head = a.k_page + head * sterna::kv_head_bytes(keys_type, hd);
    auto* keys = reinterpret_cast<Pair<keys_type>*>(k_head) + p / 16 * hd * 8 + p % 16;
    round_head<keys_type>(
        a.k + head * hd, a, scales_of(k_head, keys_type, hd) + p,
        [&](int64_t d, const Sixteens& q) { put_keys(q, a.count, keys + d * 8); });
    if (!a.v_page) return;
    uint8_t* const v_head = a.v_page + head * sterna::kv_head_bytes(values_type, hd);
    auto* values = reinterpret_cast<Pair<values_type>*>(v_head);
    round_head<values_type>(
        a.v + head * hd, a, scales_of(v_head, values_type, hd) + p,
        [&](int64_t d, const Sixteens& q) { put_values(q, p, a.count, hd, values + d); });
}

// A page of keys as one of values, with their factors.
template <KvType type>
inline void turn_integers(const uint8_t* k_head, int64_t head_dim, uint8_t* v_head) {
    struct Two {  // two features of two positions
        Pair<type> of[2];
    };
    const auto* keys = reinterpret_cast<const Two*>(k_head);
    auto* values = reinterpret_cast<Two*>(v_head);
    const int64_t pairs = head_dim / 2;
    for (int block = 0; block < kPage / 16; ++block, keys += 8 * pairs, values += 8 * pairs)
        for (int64_t d = 0; d < pairs; ++d) STERNA_UNROLL(8)
    for (int i = 0; i < 8; ++i) {
        const Pair<type> a = keys[d * 8 + i].of[0], b = keys[d * 8 + i].of[1];
        values[i * pairs + d] = {{{{a.of[0], b.of[0]}}, {{a.of[1], b.of[1]}}}};
    }
    __builtin_memcpy(scales_of(v_head, type, head_dim), scales_of(k_head, type, head_dim),
                     kPage * sizeof(float));
}

template <bool kF16>
inline void turn_floats(const uint8_t* k_head, int64_t head_dim, uint8_t* v_head) {
    using Element = std::conditional_t<kF16, uint16_t, float>;
    const auto* keys = reinterpret_cast<const Element*>(k_head);
    auto* values = reinterpret_cast<Element*>(v_head);
    for (int block = 0; block < kPage / 16; ++block, keys += 16 * head_dim, values += 16 * head_dim)
        for (int64_t d = 0; d < head_dim; ++d) STERNA_UNROLL(16)
    for (int i = 0; i < 16; ++i) values[i * head_dim + d] = keys[d * 16 + i];
}

// Stores sixteen values in the form of a page of floats.
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
inline void store_floats(const sterna::KvStoreArgs& a, int64_t head) {
    using Element = std::conditional_t<kF16, uint16_t, float>;
    const int64_t hd = a.head_dim, at = head * sterna::kv_head_bytes(a.type.keys, hd);
    for (int t = 0; t < a.count; ++t) {
        const int64_t position = a.position_in_page + t;
        const int64_t from = t * a.stride + head * hd;
        auto* keys =
            reinterpret_cast<Element*>(a.k_page + at) + position / 16 * hd * 16 + position % 16;
        auto* values = reinterpret_cast<Element*>(a.v_page + at) + position * hd;
        for (int64_t d = 0; d < hd; d += 16) {
            Element lanes[16];
            to_page<kF16>(a.k + from + d, lanes);
            for (int i = 0; i < 16; ++i) keys[(d + i) * 16] = lanes[i];
            if (a.v_page) to_page<kF16>(a.v + from + d, values + d);
        }
    }
}

using StoreHead = void (*)(const sterna::KvStoreArgs&, int64_t head);
inline StoreHead store_of(sterna::KvTypes type) {
    switch (type.keys) {
        case KvType::kF32:
            return store_floats<false>;
        case KvType::kF16:
            return store_floats<true>;
        case KvType::kI16:
            return store_integers<KvType::kI16, KvType::kI16>;
        default:
            break;
    }
    if (type.values == KvType::kI4) return store_integers<KvType::kI8, KvType::kI4>;
    return store_integers<KvType::kI8, KvType::kI8>;
}

// Returns false if a key or value is not finite, or not in f16.
inline bool kv_store(const sterna::KvStoreArgs& a) {
    // 65520 and above round to infinity in f16.
    const int32_t limit = a.type.keys == KvType::kF16 ? 0x477FF000 : 0x7F800000;
    const int64_t width = int64_t{a.n_kv_heads} * a.head_dim;
    bool finite = true;
    for (int t = 0; t < a.count; ++t)
        finite = absmax_bits(a.k + t * a.stride, width) < limit &&
                 (!a.v_page || absmax_bits(a.v + t * a.stride, width) < limit) && finite;
    auto* const store = store_of(a.type);
    for (int64_t head = 0; head < a.n_kv_heads; ++head) store(a, head);
    return finite;
}

// Copies the key at `position` of a head's page to one of another page. Unit: what a key has in a line that sixteen
// share, which is a pair of features or one.
template <class Unit>
inline void copy_key(const uint8_t* from, int position, uint8_t* to, int to_position,
                     int64_t units) {
    constexpr int64_t kBytes = sizeof(Unit);
    from += (position / 16 * units * 16 + position % 16) * kBytes;
    to += (to_position / 16 * units * 16 + to_position % 16) * kBytes;
    for (int64_t i = 0; i < units; ++i)
        __builtin_memcpy(to + i * 16 * kBytes, from + i * 16 * kBytes, kBytes);
}

inline void gather_keys(const sterna::KeyGatherArgs& a) {
    const int64_t hd = a.head_dim, bytes = sterna::kv_head_bytes(a.type, hd);
    const bool pairs = sterna::kv_integers(a.type);
    const bool wide =
        a.type == KvType::kI16 || a.type == KvType::kF32;  // a line's unit has 4 bytes
    if (a.count % kPage)
        __builtin_memset(a.to + a.count / kPage * bytes, 0, static_cast<size_t>(bytes));
    for (int i = 0; i < a.count; ++i) {
        const auto position = static_cast<int>(a.positions[i]);
        const uint8_t* from = a.k_base + a.pages[position / kPage] * a.page_stride;
        uint8_t* to = a.to + i / kPage * bytes;
        const int at = position % kPage, to_at = i % kPage;
        if (wide) {
            copy_key<uint32_t>(from, at, to, to_at, pairs ? hd / 2 : hd);
        } else {
            copy_key<uint16_t>(from, at, to, to_at, pairs ? hd / 2 : hd);
        }
        if (pairs) scales_of(to, a.type, hd)[to_at] = scales_of(from, a.type, hd)[at];
    }
}

}  // namespace
