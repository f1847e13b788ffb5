// Adapters, as Python makes them, and whether they fit a program.
#pragma once
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/step.h"

namespace sterna::border {

constexpr int kMaxRank = 4096;

// A matrix of finite numbers, in tiles.
inline AdapterMatrix adapter_matrix(const In<float, 2>& rows) {
    const auto M = static_cast<int64_t>(rows.shape(0)), K = static_cast<int64_t>(rows.shape(1));
    require(M >= 1 && K >= 1, "adapter: matrices must have rows and columns");
    AdapterMatrix matrix(M, K);
    for (int64_t m = 0; m < M; ++m) {
        float* out = matrix.tile(m / kRowBlock) + m % kRowBlock;
        const float* row = rows.data() + m * K;
        for (int64_t k = 0; k < K; ++k) {
            require(std::isfinite(row[k]), "adapter: values must be finite");
            out[k * kRowBlock] = row[k];
        }
    }
    return matrix;
}

// B of a layer, of whose result the first is at a column, and its scale: (B [rows][rank], column, scale).
using PyUp = std::tuple<In<float, 2>, int64_t, float>;

// Adds an adapter's part at a place: A of all its layers [ranks][features], and the rest of each in their order.
inline void add_layers(Adapter& adapter, int place, const In<float, 2>& down,
                       const std::vector<PyUp>& ups) {
    require(place >= 0 && place < (1 << 20), "adapter: no such place");
    AdapterLayers layers(adapter_matrix(down));
    int64_t first = 0;
    for (const auto& [rows, column, scale] : ups) {
        AdapterMatrix up = adapter_matrix(rows);
        require(up.columns <= kMaxRank && column >= 0 && std::isfinite(scale),
                "adapter: a rank must lie in 1..4096, and a scale be finite");
        first += up.columns;
        layers.ups.push_back({std::move(up), first - up.columns, column, scale});
    }
    require(first == layers.down.rows, "adapter: A must have a row for each column of B");
    if (std::ssize(adapter.places) <= place) adapter.places.resize(static_cast<size_t>(place) + 1);
    auto& at = adapter.places[static_cast<size_t>(place)];
    require(at.empty(), "adapter: has layers at this place");
    at.push_back(std::move(layers));
}

// std::invalid_argument where an adapter is of other layers than a program's.
inline void require_fit(const PyProgram& p, const Adapter& adapter) {
    require(adapter.places.size() <= p.program.needs().adapted.size(),
            "adapters: one is of another program");
    for (size_t i = 0; i < adapter.places.size(); ++i)
        for (const AdapterLayers& layers : adapter.places[i]) {
            const auto& [features, rows] = p.program.needs().adapted[i];
            require(layers.down.columns == features, "adapters: one is of another program");
            for (const auto& up : layers.ups)
                require(up.column + up.matrix.rows <= rows, "adapters: one is of another program");
        }
}

inline std::vector<AdapterSpan> adapter_spans(const PyProgram& p,
                                              const std::vector<PyAdapted>& adapters,
                                              int sequences) {
    std::vector<AdapterSpan> spans;
    int end = 0;
    for (const auto& [first, count, adapter] : adapters) {
        require(first >= end && count >= 1 && count <= sequences - first && adapter,
                "adapters: must be of sequences, in their order");
        require_fit(p, *adapter);
        spans.push_back({first, count, adapter});
        end = first + count;
    }
    return spans;
}

inline void bind_adapter(nb::module_& m) {
    nb::class_<Adapter>(m, "Adapter")
        .def(nb::init<>())
        .def("add", &add_layers, "place"_a, "down"_a, "ups"_a);
}

}  // namespace sterna::border
