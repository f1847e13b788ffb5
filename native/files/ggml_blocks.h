// Blocks of GGUF files (ggml's layouts) as levels and scales, and from there to a format's tiles.
//
// sterna/formats/ggml_blocks/parsers.py has the same in numpy: read it first; tests compare the two.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "runtime/pool.h"
#include "units/kernel_table.h"

namespace sterna {

// k weights in `bytes` bytes. Their scales, as a row of a packed weight has them one after the other (GroupScales),
// take `scale_bytes`: floats, and then single bytes.
struct BlockType {
    const char* name;
    int k, bytes, scale_bytes;
    // `count` blocks of row r of a tile of `rows`: levels, and scales to their lines, of which each has a value of every
    // row. False for a code that is no level, or a scale that is not finite.
    bool (*decode)(const uint8_t* blocks, int64_t count, int rows, int8_t* levels, uint8_t* lines,
                   int r);
};

std::span<const BlockType> block_types();
std::span<const BlockType>
ik_block_types();  // those of them that ik_llama.cpp alone has (ik_blocks.cpp)

// A matrix of blocks, and where it goes. The format's layout is one of steps in ascending k.
struct BlockRows {
    const BlockType& type;
    const SourceRow* rows;  // [M]
    int64_t M, K;  // K: whole blocks
    int level_offset, level_step;
    uint8_t* codes;
    int64_t tile_bytes;
    uint8_t* scales;  // zeroed
    int64_t scale_tile_bytes;
};

// Packs all rows. Returns -1, or the first row with a code that is no level or a scale that is not finite; the packed
// bytes are then invalid.
int64_t pack_blocks(const BlockRows& from, const FormatKernels& format, Pool& pool);

// Levels -1..1 of I2_S, two-bit codes without scales between them, of which none is 3: of each `span` bytes first all
// highest fields, then the next.
void i2s_levels(const uint8_t* bytes, int64_t count, int64_t span, int8_t* levels, Pool& pool);

}  // namespace sterna
