// LoRA adapters: low-rank matrices that add to the results of linear layers, y += scale * B (A x).
//
// Both products are float32 sums in a fixed order (lora.h): A x ascending within chunks of kAdapterK features, then
// over the chunks; B (A x) ascending over the rank. Matrices lie in tiles of kRowBlock rows: A [rows of A][features],
// B [rows of B][rank].
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/memory.h"
#include "units/kernel_table.h"

namespace sterna {

constexpr int64_t kAdapterK = 1024;  // a tile's chunk is 64 KB
constexpr int64_t kAdapterTokens = 32;  // of a unit of work
constexpr int64_t kAdapterRows = 256;  // of B in a unit of work

constexpr int64_t row_blocks(int64_t rows) { return (rows + kRowBlock - 1) / kRowBlock; }

// Rows of float32 in tiles [row_blocks(rows)][columns][kRowBlock], zero beyond the last row.
struct AdapterMatrix {
    AdapterMatrix(int64_t rows, int64_t columns)
        : rows(rows),
          columns(columns),
          memory(static_cast<size_t>(row_blocks(rows) * columns * kRowBlock * 4)) {}
    float* tile(int64_t block) const {
        return reinterpret_cast<float*>(memory.data()) + block * columns * kRowBlock;
    }

    int64_t rows, columns;
    HugeBuffer memory;
};

// The matrices of layers that share an input: one A of all of them, and B of each.
struct AdapterLayers {
    struct Up {
        AdapterMatrix matrix;  // [rows of the layer][its rank]
        int64_t first;  // of its rank in A's rows
        int64_t column;  // of its first row in the layers' result
        float scale;

        int64_t units() const { return (matrix.rows + kAdapterRows - 1) / kAdapterRows; }
    };
    explicit AdapterLayers(AdapterMatrix down) : down(std::move(down)) {}

    int64_t chunks() const { return (down.columns + kAdapterK - 1) / kAdapterK; }
    // Of a token's sums: [chunks][rows of A, whole blocks].
    int64_t sums() const { return chunks() * row_blocks(down.rows) * kRowBlock; }
    int64_t down_units() const { return chunks() * row_blocks(down.rows); }
    int64_t up_units() const {
        int64_t units = 0;
        for (const Up& up : ups) units += up.units();
        return units;
    }

    AdapterMatrix down;
    std::vector<Up> ups;
};

struct Adapter {
    Adapter() = default;
    Adapter(const Adapter&) = delete;

    std::vector<std::vector<AdapterLayers>> places;  // of the program: one each, or none

    const AdapterLayers* at(int place) const {
        const auto i = static_cast<size_t>(place);
        return i < places.size() && !places[i].empty() ? &places[i].front() : nullptr;
    }
    int64_t sums() const {
        int64_t most = 0;
        for (const auto& place : places)
            for (const AdapterLayers& layers : place) most = std::max(most, layers.sums());
        return most;
    }
    int64_t rank() const {
        int64_t most = 0;
        for (const auto& place : places)
            for (const AdapterLayers& layers : place)
                for (const auto& up : layers.ups) most = std::max(most, up.matrix.columns);
        return most;
    }
};

}  // namespace sterna
