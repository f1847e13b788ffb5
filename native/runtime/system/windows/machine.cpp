// The processor and its memory, as GetLogicalProcessorInformationEx and others describe them.
#include <algorithm>
#include <vector>

#include "runtime/system/system.h"
#include "runtime/system/windows/api.h"
#include "runtime/topology.h"
// Needs the types of the one before.
#include <psapi.h>

namespace sterna {
namespace {

using Information = SYSTEM_LOGICAL_PROCESSOR_INFORMATION_EX;

// Calls f with each entry of a kind.
template <class F>
void each_of(LOGICAL_PROCESSOR_RELATIONSHIP kind, F&& f) {
    DWORD size = 0;
    GetLogicalProcessorInformationEx(kind, nullptr, &size);
    std::vector<unsigned char> bytes(size);
    auto* const first = reinterpret_cast<Information*>(bytes.data());
    if (size == 0 || !GetLogicalProcessorInformationEx(kind, first, &size)) return;
    for (size_t at = 0; at + 8 <= size;) {
        const auto& entry = *reinterpret_cast<const Information*>(bytes.data() + at);
        if (entry.Size == 0) return;
        if (entry.Relationship == kind) f(entry);
        at += entry.Size;
    }
}

// The second byte of PROCESSOR_RELATIONSHIP, which older headers have no name for.
int efficiency_class(const Information& entry) {
    return reinterpret_cast<const BYTE*>(&entry.Processor)[1];
}

std::vector<int> cpus_of(const GROUP_AFFINITY& group) {
    std::vector<int> cpus;
    for (int bit = 0; bit < 64; ++bit)
        if (static_cast<uint64_t>(group.Mask) >> bit & 1) cpus.push_back(group.Group * 64 + bit);
    return cpus;
}

}  // namespace

// A core's efficiency class is the higher the faster it is. As on other hybrid processors all but the fastest are slow.
Machine system::read_machine(const std::string&) {
    Machine machine;
    int fastest = 0;
    each_of(RelationProcessorCore, [&](const Information& entry) {
        fastest = std::max(fastest, efficiency_class(entry));
    });
    each_of(RelationProcessorCore, [&](const Information& entry) {
        const std::vector<int> cpus = cpus_of(entry.Processor.GroupMask[0]);
        for (const int cpu : cpus) {
            machine.core_of[cpu] = cpus.front();
            if (efficiency_class(entry) < fastest) machine.slow.insert(cpu);
        }
    });
    each_of(RelationNumaNode, [&](const Information& entry) {
        const auto node = static_cast<int>(entry.NumaNode.NodeNumber);
        for (const int cpu : cpus_of(entry.NumaNode.GroupMask)) machine.nodes[node].push_back(cpu);
    });
    return machine;
}

double system::cpu_quota(const std::string&) { return 0.0; }

std::map<int, int64_t> system::data_caches(const std::string&) {
    std::map<int, int64_t> sizes;
    each_of(RelationCache, [&](const Information& entry) {
        if (entry.Cache.Type != CacheInstruction && (entry.Cache.GroupMask.Mask & 1))
            sizes[entry.Cache.Level] = entry.Cache.CacheSize;
    });
    return sizes;
}

system::MemoryState system::memory_state(const std::string&) {
    MemoryState state;
    MEMORYSTATUSEX memory{};
    memory.dwLength = sizeof memory;
    if (GlobalMemoryStatusEx(&memory)) {
        state.total = static_cast<int64_t>(memory.ullTotalPhys);
        // What is committed must have its place in memory or in the page file, whether it is used or not.
        state.available =
            static_cast<int64_t>(std::min(memory.ullAvailPhys, memory.ullAvailPageFile));
    }
    PROCESS_MEMORY_COUNTERS own{};
    if (K32GetProcessMemoryInfo(GetCurrentProcess(), &own, sizeof own))
        state.resident = static_cast<int64_t>(own.WorkingSetSize);
    return state;
}

}  // namespace sterna
