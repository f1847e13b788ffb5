#include <algorithm>
#include <cstdint>
#include <cstring>

#include "runtime/affinity.h"
#include "runtime/arena.h"
#include "runtime/cpu.h"
#include "runtime/memory.h"
#include "runtime/system/system.h"
#include "runtime/topology.h"
#include "testing/core/checks.h"

namespace sterna::testing {

std::vector<Check> checks() {
    return {{"machine", check_machine},
            {"memory", check_memory},
            {"pool", check_pool},
            {"interrupts", check_interrupts},
            {"mapped files", check_mapped_files},
            {"sampling", check_sampling}};
}

std::string check_machine() {
    const Topology t = topology();
    require(!t.cpus.empty() && !t.cores.empty() && !t.nodes.empty(),
            "there are CPUs, cores, nodes");
    size_t of_cores = 0, of_nodes = 0;
    for (const Core& core : t.cores) of_cores += core.cpus.size();
    for (const NumaNode& node : t.nodes) of_nodes += node.cpus.size();
    require(of_cores == t.cpus.size() && of_nodes == t.cpus.size(),
            "each CPU has a core and a node");
    require(std::ranges::any_of(t.cores, [](const Core& core) { return core.performance; }),
            "some cores are fast");
    const auto memory = system::memory_state("");
    require(0 < memory.available && memory.available <= memory.total, "available memory");
    require(0 < memory.resident && memory.resident < memory.total, "resident memory");
    const int here = current_cpu();
    require(here == -1 || std::ranges::count(t.cpus, here) == 1, "this CPU is one of them");
    CpuSet all;
    if (all.read()) {
        const int only = t.cpus.back();
        const CpuSet wanted{std::span(&only, 1)};
        {
            const AffinityScope scope(&wanted);
            require(allowed_cpus() == std::vector{only} && current_cpu() == only, "a thread moves");
        }
        require(allowed_cpus() == t.cpus, "a thread has its CPUs back");
    }
    std::string names;
    for (const auto& feature : cpu_info().features) names += " " + feature;
    return std::to_string(t.cpus.size()) + " CPUs, " + std::to_string(t.cores.size()) + " cores, " +
           std::to_string(t.nodes.size()) + " nodes, " + std::to_string(memory.available >> 20) +
           " of " + std::to_string(memory.total >> 20) + " MiB," + names;
}

namespace {

bool is_zero(const uint8_t* data, size_t bytes) {
    return std::all_of(data, data + bytes, [](uint8_t byte) { return byte == 0; });
}

}  // namespace

std::string check_memory() {
    constexpr size_t kMiB = size_t{1} << 20;
    for (const bool reserved : {false, true})
        for (const size_t bytes : {size_t{1}, 3 * kMiB - 5, 9 * kMiB}) {
            HugeBuffer buffer(bytes, reserved);
            require(is_zero(buffer.data(), bytes), "a buffer is zeros");
            const size_t alignment = bytes < 2 * kMiB ? 64 : 2 * kMiB;
            require(reinterpret_cast<uintptr_t>(buffer.data()) % alignment == 0,
                    "a buffer is aligned");
            std::memset(buffer.data(), 1, bytes);
            buffer.release(0, static_cast<int64_t>(bytes));
            std::memset(buffer.data(), 2, bytes);
        }
    // In an arena what is given back lies between neighbours, and is zeros when it is taken again.
    for (int round = 0; round < 3; ++round) {
        const ArenaBuffer before(kMiB);
        std::memset(before.data(), 3, kMiB);
        for (int i = 0; i < 3; ++i) {
            const ArenaBuffer between(11 * kMiB + 4096), after(kMiB);
            require(is_zero(between.data(), 11 * kMiB + 4096) && is_zero(after.data(), kMiB),
                    "an array is zeros");
            std::memset(between.data(), 4, 11 * kMiB + 4096);
            std::memset(after.data(), 5, kMiB);
            require(before.data()[kMiB - 1] == 3, "a neighbour is left alone");
        }
    }
    bool refused = false;
    try {
        const HugeBuffer buffer(SIZE_MAX / 2, true);
    } catch (const std::bad_alloc&) {
        refused = true;
    }
    require(refused, "what no system has is refused");
    return "buffers and arrays";
}

}  // namespace sterna::testing
