#include "dispatch.h"

#include <algorithm>

#include "cpu.h"
#include "generated/isa_list.inc"

#define STERNA_ISA(name) extern "C" const sterna::KernelTable* sterna_kernels_##name();
STERNA_ISA_LIST
#undef STERNA_ISA

namespace sterna {

std::span<const KernelTable* const> all_tables() {
    static const auto tables = [] {
        std::vector<const KernelTable*> t{
#define STERNA_ISA(name) sterna_kernels_##name(),
            STERNA_ISA_LIST
#undef STERNA_ISA
        };
        std::ranges::sort(t, {}, [](const KernelTable* k) { return k->rank; });
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
