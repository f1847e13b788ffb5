// The sums of attention_integers.h on a matrix unit. An int16 is split into its high byte (signed) and its low
// byte (unsigned), 256 h + l. Four products of bytes make one of int16, two make one of int16 and int8.
#pragma once
#include "attention/attention_rows.h"
#include "attention/integer_sums.h"
#include "attention/kv_pages.h"
#include "units/kernel_table.h"
#include "unroll.h"
#include "vocabulary.h"

namespace {

// Blocks of 16 columns that products take at a time.
template <KvType type>
constexpr int kColumns = type == KvType::kI16 ? 1 : 2;

// Products with the first tile of y, whose bytes are signed if they are whole elements.
template <KvType type>
inline void low_times_first() {
    if constexpr (kColumns<type> == 2) {
        tile_dot_us(0, 4, 6);
    } else {
        tile_dot_uu(0, 4, 6);
    }
}
template <KvType type>
inline void high_times_first() {
    if constexpr (kColumns<type> == 2) {
        tile_dot_ss(2, 5, 6);
    } else {
        tile_dot(2, 5, 6);
    }
}

// Accumulators 0..3 += x y, with x 16 x 64 as its low and then its high bytes, and y as two tiles 64 x 16: the low and
// the high bytes of a block of int16, or two blocks of int8. The order is low x first, low x second, high x first, high
// x second. Loading a register waits for the products that read it, so steps alternate in the tile of y that they start
// with. `first`: the accumulators still hold the previous block. If there was one, each is stored to `sums` just before
// it is cleared.
template <KvType type, bool kOdd>
inline void byte_products(const uint8_t* x, const uint8_t* y, bool first, int32_t* sums) {
    tile_load(4, x, 64);
    if constexpr (kOdd) {
        tile_load(7, y + kTileBytes, 64);
        tile_dot_us(1, 4, 7);
        tile_load(6, y, 64);
        low_times_first<type>();
        tile_load(5, x + kTileBytes, 64);
        high_times_first<type>();
        tile_dot_ss(3, 5, 7);
    } else {
        tile_load(6, y, 64);
        if (sums) tile_store(0, sums);
        if (first) tile_zero(0);
        low_times_first<type>();
        tile_load(7, y + kTileBytes, 64);
        if (sums) tile_store(1, sums + 256);
        if (first) tile_zero(1);
        tile_dot_us(1, 4, 7);
        tile_load(5, x + kTileBytes, 64);
        if (sums) tile_store(3, sums + 768);
        if (first) tile_zero(3);
        tile_dot_ss(3, 5, 7);
        if (sums) tile_store(2, sums + 512);
        if (first) tile_zero(2);
        high_times_first<type>();
    }
}

// A row of a block's sums: low x low, low x high + high x low, high x high.
struct RowSums {
    VI low, middle, high;
    explicit RowSums(const int32_t* sums)
        : low(i_load(sums)),
          middle(i_add(i_load(sums + 256), i_load(sums + 512))),
          high(i_load(sums + 768)) {}
};
// A row of sums of int16 and int8, which fit int32.
inline VI whole_sums(const int32_t* sums) {
    return i_add(i_shl<8>(i_load(sums + 512)), i_load(sums));
}

// Sums of a row's products, which fit int32.
template <KvType type>
inline VI score_sums(const int32_t* sums) {
    if constexpr (kColumns<type> == 2) return whole_sums(sums);
    const RowSums row(sums);
    return i_add(i_add(i_shl<16>(row.high), i_shl<8>(row.middle)), row.low);
}
// Those of weights and values, times a scale.
template <KvType type>
inline VF output_sums(const int32_t* sums, float scale) {
    if constexpr (kColumns<type> == 2) return scaled_parts(i_set1(0), whole_sums(sums), scale);
    const RowSums row(sums);
    return scaled_parts(i_shl<4>(row.high), i_add(i_shl<8>(row.middle), row.low), scale);
}

// Computes blocks of sums one after the other. Each is finished while the unit works on the next.
template <KvType type, class Finish>
struct TilePipeline {
    int32_t* sums;  // [4][16][16]
    Finish finish;  // (sums, i, j); sums of column block c of the products begin at 256 c
    int last_i = -1, last_j = 0;

    void block(int i, int j, const uint8_t* x, const uint8_t* y, int64_t steps) {
        for (int64_t step = 0; step < steps; step += 2, x += 4 * kTileBytes, y += 4 * kTileBytes) {
            byte_products<type, false>(x, y, step == 0, step == 0 && last_i >= 0 ? sums : nullptr);
            if (step + 1 < steps)
                byte_products<type, true>(x + 2 * kTileBytes, y + 2 * kTileBytes, false, nullptr);
        }
        if (last_i >= 0) finish(sums, last_i, last_j);
        last_i = i, last_j = j;
    }
    void drain() {
        tile_store(0, sums);
        tile_store(1, sums + 256);
        tile_store(2, sums + 512);
        tile_store(3, sums + 768);
        finish(sums, last_i, last_j);
    }
};

constexpr int kFewestTileRows = 8;  // query rows: with fewer, most of a tile would be empty

template <KvType keys_type, KvType values_type>
struct AttentionTiles {
    static constexpr bool kUsed = true;
    static constexpr int kBlocks = sterna::kMaxAttentionRows / 16;  // blocks of 16 rows

    const sterna::AttentionArgs& a;
    Rows& rows;
    int64_t steps;  // steps of 64 values of a head
    uint8_t* q;  // [block of 16 rows][step][low, high][16 rows][64 d]
    uint8_t* w;  // [block of 16 rows][page][low, high][16 rows][64 positions]
    uint8_t* kv;  // the tiles of y for kColumns blocks of 16 keys, or of 16 d: see split_columns
    int32_t* sums;  // sums of a TilePipeline

    AttentionTiles(const sterna::AttentionArgs& a, Rows& rows, uint8_t* scratch)
        : a(a),
          rows(rows),
          steps(padded_head_dim(a.head_dim) / 64),
          q(scratch),
          w(q + kBlocks * steps * 2 * kTileBytes),
          kv(w + kBlocks * kPages * 2 * kTileBytes),
          sums(reinterpret_cast<int32_t*>(kv + operand_bytes(a.head_dim))) {}
    static constexpr int kPages = kChunk / kPage;
    static constexpr int64_t operand_bytes(int64_t head_dim) {
        const int64_t keys = kPage / 16 * (padded_head_dim(head_dim) / 64) * 2 * kTileBytes;
        return keys > kPages * 2 * kTileBytes ? keys : kPages * 2 * kTileBytes;
    }
    static constexpr int64_t bytes(int64_t head_dim) {
        return kBlocks * (padded_head_dim(head_dim) / 64 + kPages) * 2 * kTileBytes +
               operand_bytes(head_dim) + 4 * kTileBytes;
    }

    int blocks() const { return (a.rows + 15) / 16; }

    void begin(const int16_t* queries) {
        tile_begin(16);
        for (int r = 0; r < a.rows; ++r)
            for (int64_t step = 0; step < steps; ++step) {
                uint8_t* low = q + (r / 16 * steps + step) * 2 * kTileBytes + r % 16 * 64;
                split_row(queries + (r * steps + step) * 64, low, low + kTileBytes);
            }
    }
    void end() { tile_end(); }

    void scores(const uint8_t* page, int j0) {
        const int keys = clamp(rows.keys[a.rows - 1] - j0, kPage), key_blocks = (keys + 15) / 16;
        const int64_t hd = a.head_dim, bytes = steps * 2 * kTileBytes;
        constexpr int kWide = kColumns<keys_type>;
        for (int b = 0; b < key_blocks; ++b)
            split_key_block(reinterpret_cast<const Pair<keys_type>*>(page) + b * hd * 8, hd,
                            kv + b / kWide * bytes + b % kWide * kTileBytes);
        const float* scales = scales_of(page, keys_type, hd);
        const auto finish = [scores = rows.scores, scales, j0](const int32_t* sums, int i, int b) {
            for (int c = 0; c < kWide; ++c) {
                const int j = 16 * (kWide * b + c);
                const VF scale = f_load(scales + j);
                STERNA_UNROLL(4)
                for (int r = 0; r < 16; ++r) {
                    const VI sum = score_sums<keys_type>(sums + 256 * c + 16 * r);
                    f_store(scores[16 * i + r] + j0 + j, f_mul(f_from_i(sum), scale));
                }
            }
        };
        TilePipeline<keys_type, decltype(finish)> pipeline{sums, finish};
        for (int i = 0; i < blocks(); ++i)
            for (int b = 0; b * kWide < key_blocks; ++b)
                pipeline.block(i, b, q + i * bytes, kv + b * bytes, steps);
        pipeline.drain();
    }

    // Two lines of 16 columns x 2 elements as one line of tiles.
    template <KvType type>
    static void put_columns(const Pair<type>* first, const Pair<type>* second, uint8_t* to) {
        if constexpr (kColumns<type> == 2) {
            join_columns(load_pairs(first, 0), load_pairs(second, 0), to);
        } else {
            split_columns(load_pairs(first, 0), load_pairs(second, 0), to, to + kTileBytes);
        }
    }
    static void split_key_block(const Pair<keys_type>* keys, int64_t head_dim, uint8_t* to) {
        for (int64_t d = 0; d < head_dim; d += 4, keys += 32)
            put_columns(keys, keys + 16, to + d / 64 * 2 * kTileBytes + d % 64 * 16);
    }
    // `stride` pairs between two pairs of positions.
    static void split_value_block(const Pair<values_type>* values, int64_t stride, uint8_t* to) {
        STERNA_UNROLL(4)
        for (int j = 0; j < kPage / 4; ++j, values += 2 * stride, to += 64)
            put_columns(values, values + stride, to);
    }

    void values(int64_t first, const int16_t (*weights)[kChunk], const float* w_scale) {
        const int begin = rows.first_page / kPage;
        const int pages = (rows.keys[a.rows - 1] + kPage - 1) / kPage - begin;
        first += rows.first_page;
        for (int r = 0; r < a.rows; ++r) {
            uint8_t* low = w + r / 16 * kPages * 2 * kTileBytes + r % 16 * 64;
            for (int p = 0; p < pages; ++p, low += 2 * kTileBytes)
                split_row(weights[r] + (begin + p) * kPage, low, low + kTileBytes);
        }
        const int64_t hd = a.head_dim;
        constexpr int kWide = kColumns<values_type>;
        const auto finish = [out = rows.chunk_out, w_scale, hd](const int32_t* sums, int i, int b) {
            for (int c = 0; c < kWide && 16 * (kWide * b + c) < hd; ++c) {
                STERNA_UNROLL(4)
                for (int r = 0; r < 16; ++r)
                    f_store(out + (16 * i + r) * hd + 16 * (kWide * b + c),
                            output_sums<values_type>(sums + 256 * c + 16 * r, w_scale[16 * i + r]));
            }
        };
        TilePipeline<values_type, decltype(finish)> pipeline{sums, finish};
        for (int b = 0; 16 * kWide * b < hd; ++b) {
            const auto blocks_left = static_cast<int>(hd / 16) - kWide * b;
            for (int p = 0; p < pages; ++p) {
                const auto* page =
                    reinterpret_cast<const Pair<values_type>*>(value_page(a, first + p * kPage));
                for (int c = 0; c < kWide && c < blocks_left; ++c)
                    split_value_block(page + 16 * (kWide * b + c), hd,
                                      kv + (2 * p + c) * kTileBytes);
            }
            for (int i = 0; i < blocks(); ++i)
                pipeline.block(i, b, w + i * kPages * 2 * kTileBytes, kv, pages);
        }
        pipeline.drain();
    }
};
// Sums of low x low over a chunk, and the part of `middle` that is added to them, fit int32. So do those of weights and
// int8.
static_assert(int64_t{kChunk} * 255 * 255 + (15 << 8) < int64_t{1} << 31);
static_assert(int64_t{kChunk} * sterna::kWeightLevels * 128 < int64_t{1} << 31);

}  // namespace
