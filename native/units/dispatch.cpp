#include "units/dispatch.h"

#include <algorithm>
#include <deque>

#include "generated/isa_list.inc"
#include "runtime/cpu.h"

#define STERNA_FAMILY(isa, family) \
    extern "C" sterna::FormatFamily sterna_layouts_##isa##_##family();
#define STERNA_ISA(isa)                                           \
    extern "C" const sterna::KernelTable* sterna_kernels_##isa(); \
    STERNA_FAMILY_LIST(isa)
STERNA_ISA_LIST
#undef STERNA_ISA
#undef STERNA_FAMILY

namespace sterna {

namespace {

template <class T>
void inherit(T& own, T extended) {
    if (!own) own = extended;
}

// Fills in what a layout, or a unit's table, lacks from the unit that it extends.
void inherit_from(FormatKernels& own, const FormatKernels& extended) {
    FormatKernels k = extended;  // its facts too
    if (own.linear) k.linear = own.linear, k.scratch_bytes = own.scratch_bytes;
    k.fast = own.fast;
    own = k;
}
void inherit_from(KernelTable& own, const KernelTable& extended) {
    inherit(own.rowwise, extended.rowwise);
    inherit(own.rope, extended.rope);
    inherit(own.cap, extended.cap);
    inherit(own.kv_store, extended.kv_store);
    inherit(own.attention, extended.attention);
    inherit(own.attention_chunk, extended.attention_chunk);
    inherit(own.attention_merge, extended.attention_merge);
    inherit(own.attention_scratch, extended.attention_scratch);
    inherit(own.x_block, extended.x_block);
    inherit(own.peak_int8, extended.peak_int8);
    inherit(own.peak_f32, extended.peak_f32);
    inherit(own.list_nonzero, extended.list_nonzero);
    inherit(own.linear_open_rows, extended.linear_open_rows);
    inherit(own.linear_columns, extended.linear_columns);
}

// A unit's table, and behind it the formats of its families as one array.
struct Unit {
    KernelTable table;
    std::vector<FormatKernels> formats;

    Unit(const KernelTable& kernels, std::initializer_list<FormatFamily> families)
        : table(kernels) {
        for (const auto& f : families)
            formats.insert(formats.end(), f.formats, f.formats + f.count);
        table.formats = formats.data();
        table.n_formats = static_cast<int>(formats.size());
    }
    void extend(const Unit& other) {
        inherit_from(table, other.table);
        for (size_t i = 0; i < formats.size(); ++i) inherit_from(formats[i], other.formats[i]);
    }
};

std::deque<Unit> make_units() {
    std::deque<Unit> units;
#define STERNA_FAMILY(isa, family) sterna_layouts_##isa##_##family(),
#define STERNA_ISA(isa)                         \
    units.emplace_back(*sterna_kernels_##isa(), \
                       std::initializer_list<FormatFamily>{STERNA_FAMILY_LIST(isa)});
    STERNA_ISA_LIST
#undef STERNA_ISA
#undef STERNA_FAMILY
    std::ranges::sort(units, {}, [](const Unit& u) { return u.table.rank; });
    for (auto& unit : units)
        if (unit.table.extends) {
            const auto other = std::ranges::find_if(units, [&](const Unit& u) {
                return std::string_view(u.table.isa) == unit.table.extends;
            });
            unit.extend(*other);  // CMake sees to it that there is one
        }
    return units;
}

}  // namespace

std::span<const KernelTable* const> all_tables() {
    static const auto units = make_units();
    static const auto tables = [] {
        std::vector<const KernelTable*> t;
        for (const auto& unit : units) t.push_back(&unit.table);
        return t;
    }();
    return tables;
}

const std::vector<const KernelTable*>& runnable_tables() {
    static const auto tables = [] {
        std::vector<const KernelTable*> t;
        for (const auto* k : all_tables())
            if (cpu_supports(k->needs)) t.push_back(k);
        return t;
    }();
    return tables;
}

const KernelTable* find_table(std::string_view isa) {
    for (const auto* k : runnable_tables())
        if (isa == k->isa) return k;
    return nullptr;
}

int format_index(std::string_view layout) {
    const auto* table = all_tables().front();
    for (int i = 0; i < table->n_formats; ++i)
        if (layout == table->formats[i].name) return i;
    return -1;
}

}  // namespace sterna
