#include "units/dispatch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <string>

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

// Fills in the kernels that a unit lacks from the unit that it extends. Kernels are structs of pointers to functions
// and nothing else, so that none can be forgotten here.
template <class Kernels>
void inherit(Kernels& own, const Kernels& extended) {
    using Pointers = std::array<void (*)(), sizeof(Kernels) / sizeof(void (*)())>;
    auto pointers = std::bit_cast<Pointers>(own);
    const auto others = std::bit_cast<Pointers>(extended);
    for (size_t i = 0; i < pointers.size(); ++i)
        if (!pointers[i]) pointers[i] = others[i];
    own = std::bit_cast<Kernels>(pointers);
}

// Layouts that may be added: others hold pointers to those that are there, which must not move.
constexpr size_t kMostAdded = 32;

// A unit's table, followed by the formats of its families as one array.
struct Unit {
    KernelTable table;
    std::vector<FormatKernels> formats;

    Unit(const KernelTable& kernels, std::initializer_list<FormatFamily> families)
        : table(kernels) {
        for (const auto& f : families)
            formats.insert(formats.end(), f.formats, f.formats + f.count);
        formats.reserve(formats.size() + kMostAdded);
        count_formats();
    }
    void count_formats() {
        table.formats = formats.data();
        table.n_formats = static_cast<int>(formats.size());
    }
    // Fills in what it lacks of the formats from `first` on.
    void extend(const Unit& other, size_t first = 0) {
        inherit<UnitKernels>(table, other.table);
        for (size_t i = first; i < formats.size(); ++i) {
            static_cast<LayoutFacts&>(formats[i]) = other.formats[i];
            // Only `linear` heeds joint tokens, so its scratch is of the same unit.
            if (!formats[i].linear) formats[i].joint_scratch = other.formats[i].joint_scratch;
            inherit<LayoutKernels>(formats[i], other.formats[i]);
        }
    }
};

void extend_all(std::deque<Unit>& units, size_t first = 0) {
    for (auto& unit : units)  // in this order, as the unit that is extended may extend another
        for (const auto& other : units)
            if (std::string_view(other.table.isa) == unit.table.extends) unit.extend(other, first);
}

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
    extend_all(units);
    return units;
}

std::deque<Unit>& all_units() {
    static auto units = make_units();
    return units;
}

}  // namespace

std::span<const KernelTable* const> all_tables() {
    static const auto tables = [] {
        std::vector<const KernelTable*> t;
        for (const auto& unit : all_units()) t.push_back(&unit.table);
        return t;
    }();
    return tables;
}

void add_layouts(const AddedLayouts& added) {
    const std::span<const UnitLayouts> of_units(added.units, static_cast<size_t>(added.count));
    const auto find = [&](std::string_view isa) {
        return std::ranges::find(of_units, isa, [](const UnitLayouts& u) { return u.isa; });
    };
    auto& units = all_units();
    for (const auto& unit : units)
        if (!*unit.table.extends && find(unit.table.isa) == of_units.end())
            throw std::invalid_argument(std::string("layouts: must be compiled for ") +
                                        unit.table.isa);
    const FormatFamily& names = of_units.front().family;
    const size_t before = units.front().formats.size();
    for (int i = 0; i < names.count; ++i) {
        if (format_index(names.formats[i].name) >= 0) continue;
        for (auto& unit : units) {
            if (unit.formats.size() == unit.formats.capacity())
                throw std::invalid_argument("layouts: must be fewer");
            const auto own = find(unit.table.isa);
            unit.formats.push_back(own == of_units.end() ? FormatKernels{}
                                                         : own->family.formats[i]);
        }
    }
    extend_all(units, before);
    for (auto& unit : units) unit.count_formats();
}

namespace {

using Tables = std::vector<const KernelTable*>;

// Lists that were current once stay, as others may still read them.
struct Runnable {
    std::mutex changes;
    std::deque<Tables> lists;
    std::atomic<const Tables*> current;

    Runnable() {
        Tables all;
        for (const auto* k : all_tables())
            if (cpu_supports(k->needs)) all.push_back(k);
        current = &lists.emplace_back(std::move(all));
    }
};
Runnable& runnable() {
    static Runnable r;
    return r;
}

}  // namespace

const std::vector<const KernelTable*>& runnable_tables() { return *runnable().current.load(); }

void exclude_table(std::string_view isa) {
    Runnable& r = runnable();
    const std::scoped_lock lock(r.changes);
    Tables others = *r.current.load();
    if (isa == others.front()->isa) return;
    std::erase_if(others, [&](const KernelTable* k) { return isa == k->isa; });
    r.current = &r.lists.emplace_back(std::move(others));
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
