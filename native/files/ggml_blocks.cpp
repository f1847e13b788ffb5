#include "files/ggml_blocks.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <vector>

#include "files/block_reading.h"
#include "files/grids.h"

namespace sterna {

namespace {

using namespace block_reading;

struct q4_0 {
    static constexpr int k = 32, bytes = 18, halves = 1, singles = 0;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        add_fields<4, 16>(block + 2, 16, levels);
        lower<32>(levels, 8);
        return true;
    }
};

struct q4_1 {
    static constexpr int k = 32, bytes = 20, halves = 2, singles = 0;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        half(block + 2, scales + 2);
        add_fields<4, 16>(block + 4, 16, levels);
        return true;
    }
};

// Codes of five bits: four bytes of high bits, 16 of low ones.
void five_bits(In from, Levels levels) {
    int8_t high[32];
    unpack<1>(from, 4, high);
    add_fields<4, 16>(from + 4, 16, levels);
    for (int i = 0; i < 32; ++i) levels[i] = static_cast<int8_t>(levels[i] | high[i] << 4);
}

struct q5_0 {
    static constexpr int k = 32, bytes = 22, halves = 1, singles = 0;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        five_bits(block + 2, levels);
        lower<32>(levels, 16);
        return true;
    }
};

struct q5_1 {
    static constexpr int k = 32, bytes = 24, halves = 2, singles = 0;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        half(block + 2, scales + 2);
        five_bits(block + 4, levels);
        return true;
    }
};

struct q8_0 {
    static constexpr int k = 32, bytes = 34, halves = 1, singles = 0;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        std::memcpy(levels, block + 2, 32);
        return true;
    }
};

struct mxfp4 {
    static constexpr int k = 32, bytes = 17, halves = 0, singles = 1;
    static bool decode(In block, Levels levels, Out scales) {
        constexpr int8_t kValues[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
        scales[0] = block[0];
        for (int i = 0; i < 16; ++i) {
            levels[i] = kValues[block[1 + i] & 15];
            levels[16 + i] = kValues[block[1 + i] >> 4];
        }
        return block[0] != 255;  // NaN (OCP Microscaling Formats 1.0, section 5.4)
    }
};

struct iq4_nl {
    static constexpr int k = 32, bytes = 18, halves = 1, singles = 0;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        iq4_codes(block + 2, levels);
        return true;
    }
};

// d, two bytes of the scales' high bits, four of their low ones, 128 of nibbles.
struct iq4_xs {
    static constexpr int k = 256, bytes = 136, halves = 1, singles = 8;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        const int high = block[2] | block[3] << 8;
        for (int g = 0; g < 8; ++g) {
            const int low = block[4 + g / 2] >> 4 * (g % 2) & 15;
            scales[2 + g] = static_cast<uint8_t>((low | (high >> 2 * g & 3) << 4) - 32);
            iq4_codes(block + 8 + 16 * g, levels + 32 * g);
        }
        return true;
    }
};

// 16 bytes of scale and minimum, 64 of codes, d, dmin.
struct q2_k {
    static constexpr int k = 256, bytes = 84, halves = 2, singles = 16;
    static bool decode(In block, Levels levels, Out scales) {
        half(block + 80, scales);
        negative_half(block + 82, scales + 2);
        std::memcpy(scales + 4, block, 16);
        add_fields<2, 32>(block + 16, 64, levels);
        return true;
    }
};

// 32 bytes of high bits, 64 of low ones, 12 of scales, d.
struct q3_k {
    static constexpr int k = 256, bytes = 110, halves = 1, singles = 16;
    static bool decode(In block, Levels levels, Out scales) {
        half(block + 108, scales);
        auto* whole = reinterpret_cast<int8_t*>(scales + 2);
        add_fields<4, 8>(block + 96, 8, whole);
        add_fields<2, 4, 4>(block + 104, 4, whole);
        lower<16>(whole, 32);
        add_fields<2, 32>(block + 32, 64, levels);
        add_fields<1, 32, 2>(block, 32, levels);
        lower<256>(levels, 4);
        return true;
    }
};

// Eight scales and eight minima of six bits in 12 bytes, to a scale and a minimum of each group.
void six_bits(In from, Out to) {
    for (int i = 0; i < 4; ++i) {
        const uint8_t d = from[i], m = from[4 + i], both = from[8 + i];
        to[2 * i] = d & 63;
        to[2 * i + 1] = m & 63;
        to[8 + 2 * i] = static_cast<uint8_t>((both & 15) | (d >> 2 & 48));
        to[8 + 2 * i + 1] = static_cast<uint8_t>(both >> 4 | (m >> 2 & 48));
    }
}

// d, dmin, 12 bytes of scales and minima, 128 of codes.
struct q4_k {
    static constexpr int k = 256, bytes = 144, halves = 2, singles = 16;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        negative_half(block + 2, scales + 2);
        six_bits(block + 4, scales + 4);
        add_fields<4, 32>(block + 16, 128, levels);
        return true;
    }
};

// Blocks as of q4_k, with 32 bytes of high bits before the codes.
struct q5_k {
    static constexpr int k = 256, bytes = 176, halves = 2, singles = 16;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        negative_half(block + 2, scales + 2);
        six_bits(block + 4, scales + 4);
        add_fields<4, 32>(block + 48, 128, levels);
        add_fields<1, 32, 4>(block + 16, 32, levels);
        return true;
    }
};

// 128 bytes of low bits, 64 of high ones, 16 of scales, d.
struct q6_k {
    static constexpr int k = 256, bytes = 210, halves = 1, singles = 16;
    static bool decode(In block, Levels levels, Out scales) {
        half(block + 208, scales);
        std::memcpy(scales + 2, block + 192, 16);
        add_fields<4, 64>(block, 128, levels);
        add_fields<2, 32, 4>(block + 128, 64, levels);
        lower<256>(levels, 32);
        return true;
    }
};

// Reads five (or four) digits in base 3 from kBytes bytes, each a fraction of 256: the first digit of all bytes first,
// so that a digit of all bytes is one loop of vectors.
template <int kDigits, int kBytes>
void thirds(In from, Levels to) {
    uint8_t rest[kBytes];
    std::memcpy(rest, from, kBytes);
    for (int digit = 0; digit < kDigits; ++digit, to += kBytes)
        for (int i = 0; i < kBytes; ++i) {
            const auto tripled = static_cast<uint16_t>(rest[i] * 3);
            to[i] = static_cast<int8_t>((tripled >> 8) - 1);
            rest[i] = static_cast<uint8_t>(tripled);
        }
}

// 52 bytes of codes, d: 32 bytes and 16 of five digits, 4 of four.
struct tq1_0 {
    static constexpr int k = 256, bytes = 54, halves = 1, singles = 0;
    static bool decode(In block, Levels levels, Out scales) {
        half(block + 52, scales);
        thirds<5, 32>(block, levels);
        thirds<5, 16>(block + 32, levels + 160);
        thirds<4, 4>(block + 48, levels + 240);
        return true;
    }
};

// 26 bytes of codes, d: 16 bytes and 8 of five digits, 2 of four.
struct ptq1_0 {
    static constexpr int k = 128, bytes = 28, halves = 1, singles = 0;
    static bool decode(In block, Levels levels, Out scales) {
        half(block + 26, scales);
        thirds<5, 16>(block, levels);
        thirds<5, 8>(block + 16, levels + 80);
        thirds<4, 2>(block + 24, levels + 120);
        return true;
    }
};

// 32 bytes of four bits, 8 of signs, d: of the four weights 64 c + g + 16 p, p = 0..3, number 16 c + g is the code
// whose upper bits say which is 0, the lower ones the signs of the last two others; a sign of its own negates all.
struct stq1_0 {
    static constexpr int k = 256, bytes = 42, halves = 1, singles = 0;
    static bool decode(In block, Levels levels, Out scales) {
        half(block + 40, scales);
        for (int g = 0; g < 64; ++g) {
            const int code = block[g / 2] >> 4 * (g % 2) & 15, zero = code >> 2;
            const int sign = block[32 + g / 8] >> g % 8 & 1 ? -1 : 1;
            int others = 0;  // weights before p that are not 0
            for (int p = 0; p < 4; ++p) {
                const bool negative = others > 0 && (code >> (others - 1) & 1);
                levels[g / 16 * 64 + g % 16 + 16 * p] = static_cast<int8_t>(p == zero  ? 0
                                                                            : negative ? -sign
                                                                                       : sign);
                others += p != zero;
            }
        }
        return true;
    }
};

// 64 bytes of codes, d. A code 3 is not ternary.
struct tq2_0 {
    static constexpr int k = 256, bytes = 66, halves = 1, singles = 0;
    static bool decode(In block, Levels levels, Out scales) {
        half(block + 64, scales);
        int threes = 0;
        for (int i = 0; i < 64; ++i) threes |= block[i] & block[i] >> 1 & 0x55;
        add_fields<2, 32>(block, 64, levels);
        lower<256>(levels, 1);
        return threes == 0;
    }
};

// d, then a bit for each weight: d where it is 1, else -d.
struct q1_0 {
    static constexpr int k = 128, bytes = 18, halves = 1, singles = 0;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        unpack<1>(block + 2, 16, levels);
        for (int i = 0; i < 128; ++i) levels[i] = static_cast<int8_t>(2 * levels[i] - 1);
        return true;
    }
};

// d, then two bits for each weight: d (code - 1), here as d code + (-d).
struct q2_0 {
    static constexpr int k = 64, bytes = 18, halves = 2, singles = 0;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        negative_half(block, scales + 2);
        unpack<2>(block + 2, 16, levels);
        return true;
    }
};

// The same for kK weights, with levels -1..2, or as ternary ones that have no code 3.
template <int kK, bool kTernary>
struct pq2_0 {
    static constexpr int k = kK, bytes = 2 + k / 4, halves = 1, singles = 0;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        int threes = 0;
        for (int i = 2; i < bytes; ++i) threes |= block[i] & block[i] >> 1 & 0x55;
        unpack<2>(block + 2, k / 4, levels);
        lower<k>(levels, 1);
        return !kTernary || threes == 0;
    }
};

// ------------------------------------------------------------------------------- indices of tables (IQ1, IQ2, IQ3)

uint32_t word32(In at) { return word16(at) | word16(at + 2) << 16; }

// The levels of an entry, of which the signs' bits say which are negative; zero: that of the grid's codes.
template <int kWidth, int kCount>
void entry(const GridEntries<kWidth, kCount>& grid, uint32_t index, uint32_t signs, int zero,
           Levels to) {
    for (int j = 0; j < kWidth; ++j) {
        const int level = grid.codes[index][j] - zero;
        to[j] = static_cast<int8_t>(signs >> j & 1 ? -level : level);
    }
}
// Seven signs, and an eighth that makes their number even.
uint32_t with_eighth(uint32_t seven) {
    return seven | static_cast<uint32_t>(std::popcount(seven) & 1) << 7;
}

// d; for each 32 weights four indices, then a word of four times seven signs and a scale.
struct iq2_xxs {
    static constexpr int k = 256, bytes = 66, halves = 1, singles = 4;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        std::memset(scales + 2, 0, 4);
        for (int g = 0; g < 8; ++g) {
            In at = block + 2 + 8 * g;
            const uint32_t signs = word32(at + 4);
            scales[2 + g / 2] |= static_cast<uint8_t>(signs >> 28 << 4 * (g % 2));
            for (int i = 0; i < 4; ++i)
                entry(kIq2XxsGrid, at[i], with_eighth(signs >> 7 * i & 127), 43,
                      levels + 32 * g + 8 * i);
        }
        return true;
    }
};

// d, 32 words of an index and seven signs, 8 bytes of scales.
struct iq2_xs {
    static constexpr int k = 256, bytes = 74, halves = 1, singles = 8;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        std::memcpy(scales + 2, block + 66, 8);
        for (int i = 0; i < 32; ++i) {
            const uint32_t word = word16(block + 2 + 2 * i);
            entry(kIq2XsGrid, word & 511, with_eighth(word >> 9), 43, levels + 8 * i);
        }
        return true;
    }
};

// d, 32 bytes of indices, 32 of signs, 8 of the indices' upper bits, 8 of scales.
struct iq2_s {
    static constexpr int k = 256, bytes = 82, halves = 1, singles = 8;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        std::memcpy(scales + 2, block + 74, 8);
        for (int i = 0; i < 32; ++i) {
            const uint32_t upper = block[66 + i / 4] >> 2 * (i % 4) & 3;
            entry(kIq2SGrid, block[2 + i] | upper << 8, block[34 + i], 43, levels + 8 * i);
        }
        return true;
    }
};

// d, 64 bytes of indices, for each 32 weights a word of four times seven signs and a scale.
struct iq3_xxs {
    static constexpr int k = 256, bytes = 98, halves = 1, singles = 4;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        std::memset(scales + 2, 0, 4);
        for (int g = 0; g < 8; ++g) {
            const uint32_t signs = word32(block + 66 + 4 * g);
            scales[2 + g / 2] |= static_cast<uint8_t>(signs >> 28 << 4 * (g % 2));
            for (int i = 0; i < 8; ++i)
                entry(kIq3XxsGrid, block[2 + 8 * g + i],
                      with_eighth(signs >> 7 * (i / 2) & 127) >> 4 * (i % 2), 31,
                      levels + 32 * g + 4 * i);
        }
        return true;
    }
};

// d, 64 bytes of indices, 8 of their upper bits, 32 of signs, 4 of scales.
struct iq3_s {
    static constexpr int k = 256, bytes = 110, halves = 1, singles = 4;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        std::memcpy(scales + 2, block + 106, 4);
        for (int i = 0; i < 64; ++i) {
            const uint32_t upper = block[66 + i / 8] >> i % 8 & 1;
            entry(kIq3SGrid, block[2 + i] | upper << 8,
                  static_cast<uint32_t>(block[74 + i / 2]) >> 4 * (i % 2), 15, levels + 4 * i);
        }
        return true;
    }
};

// Eight ternary levels in eighths, with the shift by one.
void ternary_entry(uint32_t index, bool down, Levels to) {
    entry(kIq1Grid, number_of(kIq1Grid, index), 0, down ? 9 : 7, to);
}

// d, 32 bytes of indices, for each 32 weights a word of their upper bits, a scale and the shift.
struct iq1_s {
    static constexpr int k = 256, bytes = 50, halves = 1, singles = 4;
    static bool decode(In block, Levels levels, Out scales) {
        half(block, scales);
        std::memset(scales + 2, 0, 4);
        for (int g = 0; g < 8; ++g) {
            const uint32_t word = word16(block + 34 + 2 * g);
            scales[2 + g / 2] |= static_cast<uint8_t>((word >> 12 & 7) << 4 * (g % 2));
            for (int i = 0; i < 4; ++i)
                ternary_entry(block[2 + 4 * g + i] | (word >> 3 * i & 7) << 8, word >> 15,
                              levels + 32 * g + 8 * i);
        }
        return true;
    }
};

// 32 bytes of indices, 16 of three upper bits and a shift for each of them, four words of scales and of d.
struct iq1_m {
    static constexpr int k = 256, bytes = 56, halves = 0, singles = 8;
    static bool decode(In block, Levels levels, Out scales) {
        std::memcpy(scales, block + 48, 8);
        for (int i = 0; i < 32; ++i) {
            const uint32_t upper = block[32 + i / 2] >> 4 * (i % 2) & 15;
            ternary_entry(block[i] | (upper & 7) << 8, upper >> 3, levels + 8 * i);
        }
        // Bits 15..12 and 11..8 of d are in the last two words.
        return (block[55] & 0x70) != 0x70 || (block[53] & 0xC0) != 0xC0;
    }
};

constexpr std::array kTypes{
    type<q4_0>("q4_0"),
    type<q4_1>("q4_1"),
    type<q5_0>("q5_0"),
    type<q5_1>("q5_1"),
    type<q8_0>("q8_0"),
    type<mxfp4>("mxfp4"),
    type<iq4_nl>("iq4_nl"),
    type<iq4_xs>("iq4_xs"),
    type<q2_k>("q2_k"),
    type<q3_k>("q3_k"),
    type<q4_k>("q4_k"),
    type<q5_k>("q5_k"),
    type<q6_k>("q6_k"),
    type<tq1_0>("tq1_0"),
    type<tq2_0>("tq2_0"),
    type<stq1_0>("stq1_0"),
    type<q1_0>("q1_0"),
    type<q2_0>("q2_0"),
    type<pq2_0<64, true>>("q2_0_ternary"),
    type<pq2_0<128, false>>("pq2_0"),
    type<pq2_0<128, true>>("pq2_0_ternary"),
    type<ptq1_0>("ptq1_0"),
    type<iq1_s>("iq1_s"),
    type<iq1_m>("iq1_m"),
    type<iq2_xxs>("iq2_xxs"),
    type<iq2_xs>("iq2_xs"),
    type<iq2_s>("iq2_s"),
    type<iq3_xxs>("iq3_xxs"),
    type<iq3_s>("iq3_s"),
};
// Decoded values before packing: 64 KiB for a tile of 64 rows, which stay in L2.
constexpr int64_t kChunkK = 1024;
static_assert(kChunkK % kPad == 0 && kChunkK % kMostBlockK == 0);

template <int kShift>
void ternary_field(In from, int64_t n, Levels to) {
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<int8_t>((from[i] >> kShift & 3) - 1);
}

// One tile, a few blocks of all its rows at a time; the first bad row, or M.
int64_t pack_tile(const BlockRows& from, const FormatKernels& format, int64_t tile,
                  int8_t* levels) {
    const int rows = format.tile_rows;
    const BlockType& type = from.type;
    const int64_t first = tile * rows, count = std::min<int64_t>(rows, from.M - first);
    std::vector<SourceRow> decoded;
    for (int r = 0; r < count; ++r)
        decoded.push_back({reinterpret_cast<uint8_t*>(levels) + r * kChunkK, from.level_step - 1});
    PackArgs a{};
    a.rows = decoded.data();
    a.M = count;
    a.offset = static_cast<uint8_t>(from.level_offset);
    a.mask = from.level_step == 2 ? 127 : 255;
    a.tile_end = 1;
    int64_t bad = from.M;
    for (int64_t k = 0; k < from.K; k += kChunkK) {
        a.K = std::min(kChunkK, from.K - k);
        const int64_t b = k / type.k;
        uint8_t* lines = from.scales + tile * from.scale_tile_bytes + b * type.scale_bytes * rows;
        for (int r = 0; r < count; ++r)
            if (!type.decode(from.rows[first + r].at + b * type.bytes, a.K / type.k, rows,
                             levels + r * kChunkK, lines, r))
                bad = std::min(bad, first + r);
        a.codes = from.codes + tile * from.tile_bytes + format.tile_bytes(k);
        a.tile_bytes = format.tile_bytes((a.K + kPad - 1) / kPad * kPad);
        format.pack(a);
    }
    return bad;
}

}  // namespace

std::span<const BlockType> block_types() {
    static const std::vector<BlockType> all = [] {
        std::vector<BlockType> types(kTypes.begin(), kTypes.end());
        types.insert(types.end(), ik_block_types().begin(), ik_block_types().end());
        return types;
    }();
    return all;
}

int64_t pack_blocks(const BlockRows& from, const FormatKernels& format, Pool& pool) {
    const int64_t tiles = (from.M + format.tile_rows - 1) / format.tile_rows;
    std::atomic<int64_t> next{0}, bad{from.M};
    pool.run([&](int) {
        std::vector<int8_t> levels(static_cast<size_t>(format.tile_rows * kChunkK));
        for (int64_t tile; (tile = next.fetch_add(1)) < tiles;) {
            const int64_t found = pack_tile(from, format, tile, levels.data());
            for (int64_t least = bad; found < least && !bad.compare_exchange_weak(least, found);) {
            }
        }
    });
    return bad < from.M ? bad.load() : -1;
}

void i2s_levels(const uint8_t* bytes, int64_t count, int64_t span, int8_t* levels, Pool& pool) {
    const int64_t chunk = std::max<int64_t>(1, 65536 / span);  // runs
    std::atomic<int64_t> next{0};
    pool.run([&](int) {
        for (int64_t run; (run = next.fetch_add(chunk)) * span < count;)
            for (int64_t at = run * span; at < std::min(count, (run + chunk) * span); at += span) {
                ternary_field<6>(bytes + at, span, levels + 4 * at);
                ternary_field<4>(bytes + at, span, levels + 4 * at + span);
                ternary_field<2>(bytes + at, span, levels + 4 * at + 2 * span);
                ternary_field<0>(bytes + at, span, levels + 4 * at + 3 * span);
            }
    });
}

}  // namespace sterna
