// The tables of ggml's IQ1, IQ2 and IQ3: an index stands for eight or four values. Plain data, which all kernel units share.
#pragma once
#include <cstdint>

namespace sterna {

constexpr int kGridBucket = 32, kGridBuckets = (6561 + kGridBucket - 1) / kGridBucket;  // 3^8 keys

template <int kWidth, int kCount>
struct Grid {
    alignas(64)
        uint8_t codes[kCount][kWidth];  // values plus the format's offset; of IQ1, eighths plus 8
    // The places of the values among those of the grid: of the first half of an entry, and of the other. A byte has
    // those of four (two bits each) or of two (four bits each), the first in the lowest bits.
    alignas(64) uint8_t planes[2][kCount];
    alignas(16) uint8_t of_place[16];  // the code of a place in the low bits
    // For packing: the entries as numbers whose lowest digit is the place of the first value, in ascending order, and
    // the first entry whose number is at least kGridBucket * i.
    uint16_t keys[kCount], first[kGridBuckets];
};
// Bytes that are 0x7F where the bit of a sign is set; of seven bits, the eighth is set where their number is odd.
template <int kBits>
struct SignMasks {
    alignas(64) uint8_t bytes[1 << kBits][8], with_eighth[1 << kBits];
};

extern const Grid<8, 2048> kIq1Grid;
extern const Grid<8, 256> kIq2XxsGrid;
extern const Grid<8, 512> kIq2XsGrid;
extern const Grid<8, 1024> kIq2SGrid;
extern const Grid<4, 256> kIq3XxsGrid;
extern const Grid<4, 512> kIq3SGrid;
extern const SignMasks<7> kSigns7;
extern const SignMasks<8> kSigns8;

}  // namespace sterna
