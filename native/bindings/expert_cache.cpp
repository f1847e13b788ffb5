// The cache of experts that are read from disk.
#include "bindings/expert_cache.h"

#include <cerrno>

namespace sterna::border {

namespace {

// (weight, number of experts) of each matrix.
using PyMatrices = std::vector<std::pair<const PyWeight*, int>>;

std::vector<ExpertCache::Matrix> matrices_of(const PyMatrices& weights) {
    std::vector<ExpertCache::Matrix> matrices;
    for (const auto& [weight, experts] : weights) {
        const Weight& w = weight->weight;
        require(experts >= 1 && w.tiles > 0 && w.tiles % experts == 0,
                "experts: must have whole tiles of the weight");
        const auto bytes = [&](const auto& array) {
            return static_cast<int64_t>(array.shape(0) * array.shape(1)) / experts;
        };
        matrices.push_back({w.codes, bytes(weight->codes), w.groups.data,
                            weight->groups ? bytes(*weight->groups) : 0, experts});
    }
    return matrices;
}

nb::dict counts(const ExpertCache& cache) {
    const ExpertCache::Counts counts = cache.counts();
    nb::dict all;
    all["hits"] = counts.hits;
    all["misses"] = counts.misses;
    all["bytes"] = counts.bytes;
    all["units"] = counts.units;
    all["slots"] = counts.slots;
    all["waited_s"] = counts.waited_s;
    return all;
}

}  // namespace

void raise_failed_read(const FailedRead& e) {
    const nb::object path = nb::steal(PyUnicode_DecodeFSDefault(e.what()));
    const nb::object type = nb::module_::import_("sterna.errors").attr("DiskError");
    const nb::object error = type(path, e.offset, e.error);
    PyErr_SetObject(type.ptr(), error.ptr());
}

void bind_expert_cache(nb::module_& m) {
    m.def(
        "expert_bytes",
        [](const PyMatrices& weights) { return ExpertCache::bounds(matrices_of(weights)); },
        "weights"_a);
    nb::class_<PyExpertCache>(m, "ExpertCache")
        .def(
            "__init__",
            [](PyExpertCache* self, const PyMatrices& weights, int64_t nbytes, int readers) {
                require(!weights.empty() && readers >= 1 && readers <= 64,
                        "ExpertCache: needs weights, and 1..64 readers");
                auto matrices = matrices_of(weights);
                const MappedFile* file = MappedFile::of(matrices.front().codes);
                require(file, "weights: must lie in a mapped file");
                const auto inside = [&](const uint8_t* at, int64_t bytes) {
                    return at >= file->data() && bytes >= 0 &&
                           at + bytes <= file->data() + file->bytes();
                };
                for (const auto& one : matrices)
                    require(inside(one.codes, one.code_bytes * one.experts) &&
                                (!one.groups || inside(one.groups, one.group_bytes * one.experts)),
                            "weights: must lie in one mapped file");
                require(nbytes >= ExpertCache::bounds(matrices).first,
                        "nbytes: must hold an expert of each size");
                std::vector<nb::object> keep;
                for (const auto& [weight, experts] : weights) keep.push_back(nb::cast(weight));
                new (self) PyExpertCache(*file, std::move(matrices), nbytes, readers,
                                         std::move(keep));
            },
            "weights"_a, "nbytes"_a, "readers"_a = 4)
        .def_prop_ro("counts", [](const PyExpertCache& c) { return counts(c.cache); });
}

}  // namespace sterna::border
