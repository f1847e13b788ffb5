// Arguments and arrays of Python, for the bindings of any module.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "runtime/arena.h"
#include "runtime/memory.h"
#include "runtime/pool.h"

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

// A new numpy array of zeros in `buffer`, which goes when the last view of it does.
template <class T, size_t kDims, class Buffer>
Out<T, kDims> array_in(Buffer* buffer, const size_t (&shape)[kDims]) {
    nb::capsule owner(buffer, [](void* p) noexcept { delete static_cast<Buffer*>(p); });
    void* data = buffer->data() ? static_cast<void*>(buffer->data()) : static_cast<void*>(buffer);
    return Out<T, kDims>(data, kDims, shape, owner);
}
// One for a result.
template <class T, size_t kDims>
Out<T, kDims> make_array(const size_t (&shape)[kDims]) {
    return array_in<T>(new HugeBuffer(array_bytes(shape, sizeof(T)), true), shape);
}
// One for a weight, which lives long.
template <class T, size_t kDims>
Out<T, kDims> make_weight_array(const size_t (&shape)[kDims]) {
    return array_in<T>(new ArenaBuffer(array_bytes(shape, sizeof(T))), shape);
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

}  // namespace sterna::border
