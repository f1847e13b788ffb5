// Shared code of the bindings. Only the bindings know Python: they check every argument, so that nothing below has to,
// and drop the GIL around everything that takes time.
#pragma once
#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>

#include "bindings/arrays.h"
#include "files/mapped_file.h"
#include "head/head.h"
#include "program/program.h"
#include "program/tensors.h"
#include "units/dispatch.h"
#include "units/kernel_table.h"

namespace sterna::border {

// The unit of a name; std::invalid_argument where there is none (module.cpp).
const KernelTable& table(const std::string& isa);

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

// The mapped files that contain weights; the objects that use their memory keep them alive.
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
    // Throws ChangedFile: the results are invalid.
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

// The ModelFormatError of sterna.errors.
void raise_changed(const ChangedFile& e);

void bind_memory(nb::module_& m);
void bind_packing(nb::module_& m);
void bind_rounding(nb::module_& m);
void bind_weights(nb::module_& m);
void bind_head(nb::module_& m);
void bind_program(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_tokens(nb::module_& m);
void bind_kv_cache(nb::module_& m);

}  // namespace sterna::border
