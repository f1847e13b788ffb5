// The cache of experts, with the weights whose mapped file it reads.
#pragma once
#include <utility>
#include <vector>

#include "bindings/common.h"
#include "program/expert_cache.h"

namespace sterna::border {

struct PyExpertCache {
    PyExpertCache(const MappedFile& file, std::vector<ExpertCache::Matrix> matrices, int64_t bytes,
                  int readers, std::vector<nb::object> weights)
        : keep(std::move(weights)), cache(file, std::move(matrices), bytes, readers) {}
    PyExpertCache(const PyExpertCache&) = delete;

    std::vector<nb::object> keep;  // until the cache is gone, which reads their file
    ExpertCache cache;
};

// The DiskError of sterna.errors.
void raise_failed_read(const FailedRead& e);

void bind_expert_cache(nb::module_& m);

}  // namespace sterna::border
