// The cache of weights that stay on disk, with the arrays of the mapped file that it reads.
#pragma once
#include <utility>
#include <vector>

#include "bindings/common.h"
#include "program/weight_cache.h"

namespace sterna::border {

struct PyWeightCache {
    PyWeightCache(const MappedFile& file, std::vector<WeightCache::Matrix> matrices, int64_t bytes,
                  int readers, std::vector<nb::object> weights)
        : keep(std::move(weights)), cache(file, std::move(matrices), bytes, readers) {}
    PyWeightCache(const PyWeightCache&) = delete;

    std::vector<nb::object> keep;  // until the cache is gone, which reads their file
    WeightCache cache;
};

// The DiskError of sterna.errors.
void raise_failed_read(const FailedRead& e);

void bind_weight_cache(nb::module_& m);

}  // namespace sterna::border
