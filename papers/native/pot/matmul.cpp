#include "pot/matmul.h"

#include <algorithm>

#include "generated/pot_list.inc"
#include "runtime/cpu.h"

#define STERNA_POT_TABLE(kind, isa, needs) \
    extern "C" const sterna::pot::Table* sterna_pot_##kind##_##isa();
STERNA_POT_LIST
#undef STERNA_POT_TABLE

namespace sterna::pot {

namespace {

void add(std::vector<Isa>& all, std::string_view name, std::string_view needs, const Table& table) {
    if (all.empty() || all.back().name != name)
        all.push_back({name, needs, cpu_supports(needs), {}});
    auto& kernels = all.back().kernels;
    kernels.insert(kernels.end(), table.kernels, table.kernels + table.count);
}

}  // namespace

std::span<const Isa> isas() {
    static const auto all = [] {
        std::vector<Isa> list;
#define STERNA_POT_TABLE(kind, isa, needs) add(list, #isa, needs, *sterna_pot_##kind##_##isa());
        STERNA_POT_LIST
#undef STERNA_POT_TABLE
        return list;
    }();
    return all;
}

int word_bytes(Words words) {
    return words == Words::kU8 || words == Words::kNibbles ? 1 : words == Words::kU16 ? 2 : 4;
}

int elements_per_word(Words words) { return words == Words::kNibbles ? 2 : 1; }

void matmul(Pool& pool, const Kernel& kernel, const Args& args) {
    if (args.N == 0 || args.M == 0) return;
    if (pool.size() == 1) {
        pool.run([&](int) { kernel.run(args, 0, args.N, 0, args.M); });
        return;
    }
    // Items are (block of rows of a, block of rows of b), the former outermost.
    const int64_t rows = kernel.unroll[0], columns = kernel.unroll[1];
    const int64_t across = (args.M + columns - 1) / columns;
    const Division division{(args.N + rows - 1) / rows * across, pool.size()};
    HandOut items(pool.size());
    pool.run([&](int worker) {
        for (int64_t item, end; items.next(division, worker, item, end);) {
            while (item < end) {
                const int64_t block = item / across, stop = std::min(end, (block + 1) * across);
                kernel.run(args, block * rows, std::min(args.N, (block + 1) * rows),
                           item % across * columns,
                           std::min(args.M, (stop - block * across) * columns));
                item = stop;
            }
        }
    });
}

}  // namespace sterna::pot
