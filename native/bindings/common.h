// What the files of the border share. They are the only ones that know Python: they check every
// argument, so that nothing below has to, and drop the GIL around everything that takes time.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>

#include "files/mapped_file.h"
#include "head/head.h"
#include "program/program.h"
#include "program/tensors.h"
#include "runtime/memory.h"
#include "runtime/pool.h"
#include "units/dispatch.h"
#include "units/kernel_table.h"

namespace sterna::border {

namespace nb = nanobind;
using namespace nb::literals;

template <class T, int kDims>
using In = nb::ndarray<const T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;
// Bytes that the core writes.
using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T, int kDims>
using Out = nb::ndarray<nb::numpy, T, nb::ndim<kDims>>;

inline void require(bool ok, const char* what) {
    if (!ok) throw std::invalid_argument(what);
}

template <size_t kDims>
size_t array_bytes(const size_t (&shape)[kDims], size_t element) {
    size_t bytes = element;
    for (size_t s : shape)
        if (__builtin_mul_overflow(bytes, s, &bytes)) throw std::bad_alloc();
    return bytes;
}

// A new numpy array in huge pages; its memory goes when the last view of it does.
template <class T, size_t kDims>
Out<T, kDims> make_array(const size_t (&shape)[kDims]) {
    auto* buffer = new HugeBuffer(array_bytes(shape, sizeof(T)), true);
    nb::capsule owner(buffer, [](void* p) noexcept { delete static_cast<HugeBuffer*>(p); });
    void* data = buffer->data() ? static_cast<void*>(buffer->data()) : static_cast<void*>(buffer);
    return Out<T, kDims>(data, kDims, shape, owner);
}

// The same of any content, whose memory `spare` has again when the last view of it goes.
template <class T, size_t kDims>
Out<T, kDims> lend_array(const std::shared_ptr<SpareBuffers>& spare, const size_t (&shape)[kDims]) {
    struct Lent {
        HugeBuffer buffer;
        std::shared_ptr<SpareBuffers> owner;
    };
    auto* lent = new Lent{spare->take(array_bytes(shape, sizeof(T))), spare};
    nb::capsule owner(lent, [](void* p) noexcept {
        const std::unique_ptr<Lent> ended(static_cast<Lent*>(p));
        ended->owner->give(std::move(ended->buffer));
    });
    void* data = lent->buffer.data() ? static_cast<void*>(lent->buffer.data()) : lent;
    return Out<T, kDims>(data, kDims, shape, owner);
}

// The unit of a name; std::invalid_argument where there is none (module.cpp).
const KernelTable& table(const std::string& isa);

constexpr int kMaxHeadDim = 65536;

// The pool of a number of threads; an int that also has `cpus`, `pinned` and `nodes` (runtime.Threads)
// says where they run.
inline Pool& pool(const nb::int_& threads) {
    int count = 0;
    require(nb::try_cast(threads, count) && count >= 1 && count <= kMaxThreads,
            "threads: must lie in 1..1024");
    const nb::object cpus = nb::getattr(threads, "cpus", nb::none());
    if (cpus.is_none()) return shared_pool(count);
    const nb::object nodes = nb::getattr(threads, "nodes");
    if (nb::len(cpus) == 0 && nb::len(nodes) == 0) return shared_pool(count);
    Placement placement{nb::cast<std::vector<int>>(cpus),
                        nb::cast<bool>(nb::getattr(threads, "pinned"))};
    for (const auto& node : nodes) {
        auto [of_node, its_cpus] = nb::cast<std::pair<int, std::vector<int>>>(node);
        placement.nodes.push_back({of_node, std::move(its_cpus)});
    }
    return shared_pool(count, placement);
}

inline int layout_index(const std::string& layout) {
    const int i = format_index(layout);
    require(i >= 0, "layout: unknown code layout");
    return i;
}

inline int64_t padded_k(const FormatKernels& f, int64_t K) {
    const int64_t to = f.integer ? kPad : f.step_k;
    return (K + to - 1) / to * to;
}

inline int64_t tile_bytes(const FormatKernels& f, int64_t K) {
    return f.tile_bytes(padded_k(f, K));
}

inline int64_t tile_count(const FormatKernels& f, int64_t M) {
    return (M + f.tile_rows - 1) / f.tile_rows;
}

// Runs f(begin, end) over [0, total) on a pool.
template <class F>
void parallel(Pool& p, int64_t total, int64_t chunk, F f) {
    std::atomic<int64_t> next{0};
    p.run([&](int) {
        for (int64_t i; (i = next.fetch_add(chunk)) < total;) f(i, std::min(total, i + chunk));
    });
}

// The mapped files that weights lie in; what they are the memory of keeps them.
class Mappings {
  public:
    void add(const void* address) {
        const MappedFile* file = MappedFile::of(address);
        if (file && !std::ranges::count(files_, file)) files_.push_back(file);
    }
    void add(const Mappings& others) {
        for (const auto* file : others.files_)
            if (!std::ranges::count(files_, file)) files_.push_back(file);
    }
    // Throws ChangedFile: what was computed is worth nothing.
    void require_whole() const {
        for (const auto* file : files_) file->require_whole();
    }

  private:
    std::vector<const MappedFile*> files_;
};

// A packed matrix with the arrays that keep its memory alive.
struct PyWeight {
    Weight weight;
    In<uint8_t, 2> codes;
    std::optional<In<float, 1>> scale;
    std::optional<In<uint8_t, 2>> groups{};
    Mappings mappings{};
};

// (count, gap) of DecidingLogits. Checked: 0 <= count <= vocab.
using PyDeciding = std::tuple<int32_t, double>;
DecidingLogits make_deciding(const PyDeciding& deciding, int64_t vocab);

// The bounds of a shadow, float [3][rows of all tiles], checked to fit its weight (bindings/head.cpp).
ShadowBounds shadow_bounds(const Weight& fine, const Weight& shadow, const In<float, 2>& bounds);

// The ModelFormatError of sterna.errors.
void raise_changed(const ChangedFile& e);

void bind_memory(nb::module_& m);
void bind_packing(nb::module_& m);
void bind_rounding(nb::module_& m);
void bind_weights(nb::module_& m);
void bind_head(nb::module_& m);
void bind_program(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_kv_cache(nb::module_& m);

}  // namespace sterna::border
