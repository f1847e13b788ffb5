// The tables of ggml's IQ1, IQ2 and IQ3: an index stands for eight or four values. Plain data, which all kernel units share.
#pragma once
#include <cstdint>

namespace sterna {

constexpr int kGridBucket = 32, kGridBuckets = (6561 + kGridBucket - 1) / kGridBucket;  // 3^8 keys

template <int kWidth, int kCount>
struct GridEntries {
    alignas(64)
        uint8_t codes[kCount][kWidth];  // values plus the format's offset; of IQ1, eighths plus 8
    // For packing: the entries as numbers whose lowest digit is the place of the first value, in ascending order, and
    // the first entry whose number is at least kGridBucket * i.
    uint16_t keys[kCount], first[kGridBuckets];
};
template <int kWidth, int kCount>
struct Grid : GridEntries<kWidth, kCount> {
    // The places of the values among those of the grid: of the first half of an entry, and of the other. A byte has
    // those of four (two bits each) or of two (four bits each), the first in the lowest bits.
    alignas(64) uint8_t planes[2][kCount];
    alignas(16) uint8_t of_place[16];  // the code of a place in the low bits
};
// IQ1's grid. An entry's number is not its index in files: entries are numbered so that few bits of the number say what a
// half of the entry is, and tables of halves are short. Bits 1..0 of a number are its row, 6..2 its block, 8..7 its column
// and 10..9 its kind.
//   kinds 0 to 2               row and block give the first half, block and column the second: a block has any of four
//                              first halves with any of four others
//   kind 3, block 8 and above  the same for 2 x 2: bit 1 chooses the first half, bit 8 the second, and bits 0 and 7
//                              choose both
//   kind 3, blocks below 8     entries that are in no such rectangle
struct Iq1Grid : GridEntries<8, 2048> {
    // Halves: four places of two bits each, the first in the lowest. The first by row and block (bits 6..0), the
    // second by block and column (bits 8..2): a table for each kind, and one more for kind 3, where bit 7 is set (of
    // second halves: bit 0). The sixth is that of kind 3's blocks below 8, by bits 4..0 and, above them, the column.
    alignas(64) uint8_t halves[2][6][128];
    uint16_t number[2048];  // by the index in files, where keys ascend
};
// The number of the entry with this index in files.
template <class G>
constexpr uint32_t number_of(const G& grid, uint32_t index) {
    if constexpr (requires { grid.number; }) return grid.number[index];
    return index;
}
// Bytes that are 0x7F where the bit of a sign is set; of seven bits, the eighth is set where their number is odd.
template <int kBits>
struct SignMasks {
    alignas(64) uint8_t bytes[1 << kBits][8], with_eighth[1 << kBits];
};

extern const Iq1Grid kIq1Grid;
extern const Grid<8, 256> kIq2XxsGrid;
extern const Grid<8, 512> kIq2XsGrid;
extern const Grid<8, 1024> kIq2SGrid;
extern const Grid<4, 256> kIq3XxsGrid;
extern const Grid<4, 512> kIq3SGrid;
extern const SignMasks<7> kSigns7;
extern const SignMasks<8> kSigns8;

}  // namespace sterna
