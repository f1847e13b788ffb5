// The cache of weights that stay on disk.
#include "bindings/weight_cache.h"

#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>
#include <tuple>

#include "runtime/memory.h"
#include "runtime/system/system.h"

namespace sterna::border {

namespace {

// (weight, number of its parts, whether every token reads all of them) of each matrix.
using PyMatrices = std::vector<std::tuple<const PyWeight*, int, bool>>;

std::vector<WeightCache::Matrix> matrices_of(const PyMatrices& weights) {
    std::vector<WeightCache::Matrix> matrices;
    for (const auto& [weight, parts, every_token] : weights) {
        const Weight& w = weight->weight;
        require(parts >= 1 && w.tiles > 0 && w.tiles % parts == 0,
                "parts: must have whole tiles of the weight");
        const auto bytes = [&](const auto& array) {
            return static_cast<int64_t>(array.shape(0) * array.shape(1)) / parts;
        };
        matrices.push_back({w.codes, bytes(weight->codes), w.groups.data,
                            weight->groups ? bytes(*weight->groups) : 0, parts, every_token});
    }
    return matrices;
}

nb::dict counts(const WeightCache& cache) {
    const WeightCache::Counts counts = cache.counts();
    nb::dict all;
    all["hits"] = counts.hits;
    all["misses"] = counts.misses;
    all["bytes"] = counts.bytes;
    all["guessed"] = counts.guessed;
    all["guessed_right"] = counts.guessed_right;
    all["parts"] = counts.parts;
    all["slots"] = counts.slots;
    all["waited_s"] = counts.waited_s;
    return all;
}

// Bytes a second of reads of `bytes` each, at places all over an open file, by four threads.
double disk_speed(system::File handle, size_t file_bytes, size_t bytes, int count) {
    constexpr int kThreads = 4;
    require(bytes >= 1 && bytes <= size_t{1} << 30 && count >= 1,
            "disk_speed: needs reads of 1..2^30 bytes");
    const nb::gil_scoped_release release;
    const size_t blocks = (bytes + system::kDirectBytes - 1) / system::kDirectBytes;
    const size_t size = blocks * system::kDirectBytes, places = file_bytes / size;
    if (places == 0) return 0;
    const system::File direct = system::open_direct(handle);
    const system::File file = direct < 0 ? system::duplicate(handle) : direct;
    std::atomic<int> next{0};
    std::atomic<bool> failed{false};
    const auto began = std::chrono::steady_clock::now();
    // Other places each time: a host may have kept those of the last probe in its memory.
    const auto first = static_cast<size_t>(began.time_since_epoch().count());
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&] {
            const HugeBuffer to(size + (size_t{2} << 20));  // mapped, so it begins at a page
            for (int i; (i = next++) < count;) {
                const size_t place = (first + static_cast<size_t>(i)) * 2654435761U % places;
                try {
                    system::read_at(file, to.data(), size, place * size);
                } catch (const std::system_error&) {
                    failed = true;
                }
            }
        });
    for (auto& thread : threads) thread.join();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    system::close(file);
    return failed ? 0 : static_cast<double>(size) * count / took.count();
}

}  // namespace

void raise_failed_read(const FailedRead& e) {
    const nb::object path = nb::steal(PyUnicode_DecodeFSDefault(e.what()));
    const nb::object type = nb::module_::import_("sterna.errors").attr("DiskError");
    const nb::object error = type(path, e.offset, e.error);
    PyErr_SetObject(type.ptr(), error.ptr());
}

void bind_weight_cache(nb::module_& m) {
    m.def(
        "cache_bytes",
        [](const PyMatrices& weights) { return WeightCache::bounds(matrices_of(weights)); },
        "weights"_a);
    m.def("disk_speed", &disk_speed, "handle"_a, "file_bytes"_a, "nbytes"_a, "count"_a);
    nb::class_<PyWeightCache>(m, "WeightCache")
        .def(
            "__init__",
            [](PyWeightCache* self, const PyMatrices& weights, int64_t nbytes, int readers) {
                require(!weights.empty() && readers >= 1 && readers <= 64,
                        "WeightCache: needs weights, and 1..64 readers");
                const bool of_all = std::get<2>(weights.front());
                for (const auto& [weight, parts, every_token] : weights)
                    require(every_token == of_all,
                            "weights: must be of experts, or such that every token reads");
                auto matrices = matrices_of(weights);
                const MappedFile* file = MappedFile::of(matrices.front().codes);
                require(file, "weights: must lie in a mapped file");
                const auto inside = [&](const uint8_t* at, int64_t bytes) {
                    return at >= file->data() && bytes >= 0 &&
                           at + bytes <= file->data() + file->bytes();
                };
                for (const auto& one : matrices)
                    require(inside(one.codes, one.code_bytes * one.parts) &&
                                (!one.groups || inside(one.groups, one.group_bytes * one.parts)),
                            "weights: must lie in one mapped file");
                require(nbytes >= WeightCache::bounds(matrices).first,
                        "nbytes: must hold a part of each size");
                std::vector<nb::object> keep;
                for (const auto& one : weights) keep.push_back(nb::cast(std::get<0>(one)));
                new (self)
                    PyWeightCache(*file, std::move(matrices), nbytes, readers, std::move(keep));
            },
            "weights"_a, "nbytes"_a, "readers"_a = 2)
        .def_prop_ro("counts", [](const PyWeightCache& c) { return counts(c.cache); });
}

}  // namespace sterna::border
