// The processor and its memory, as sysctl and Mach describe them.
#include <mach/mach.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "runtime/system/macos/sysctl.h"
#include "runtime/system/system.h"
#include "runtime/topology.h"

namespace sterna {

// Kinds of cores are hw.perflevelN, the fastest first. Which CPUs are of which kind is not said, and no thread can be put
// on one, so CPUs are counted from the fastest. As on other hybrid processors all but the fastest kind are slow.
Machine system::read_machine(const std::string&) {
    Machine machine;
    const auto of_level = [](int64_t level, const char* what) {
        return number_of(("hw.perflevel" + std::to_string(level) + what).c_str());
    };
    const int64_t levels = number_of("hw.nperflevels");
    int cpu = 0;
    for (int64_t level = 0; level < std::max<int64_t>(1, levels); ++level) {
        const int64_t cpus = levels ? of_level(level, ".logicalcpu") : number_of("hw.logicalcpu");
        const int64_t cores =
            levels ? of_level(level, ".physicalcpu") : number_of("hw.physicalcpu");
        const int64_t of_core = cores > 0 ? std::max<int64_t>(1, cpus / cores) : 1;
        const int begin = cpu;
        for (; cpu - begin < cpus; ++cpu) {
            machine.core_of[cpu] = begin + static_cast<int>((cpu - begin) / of_core * of_core);
            if (level > 0) machine.slow.insert(cpu);
        }
    }
    return machine;
}

double system::cpu_quota(const std::string&) { return 0.0; }

// hw.l2cachesize and others are those of the slowest kind of cores.
std::map<int, int64_t> system::data_caches(const std::string&) {
    std::map<int, int64_t> sizes;
    const char* const names[2][3] = {
        {"hw.l1dcachesize", "hw.l2cachesize", "hw.l3cachesize"},
        {"hw.perflevel0.l1dcachesize", "hw.perflevel0.l2cachesize", "hw.perflevel0.l3cachesize"}};
    for (const auto& kind : names)
        for (int level = 1; level <= 3; ++level)
            if (const int64_t bytes = number_of(kind[level - 1]); bytes > 0) sizes[level] = bytes;
    return sizes;
}

system::MemoryState system::memory_state(const std::string&) {
    MemoryState state;
    state.total = number_of("hw.memsize");
    const auto page = static_cast<int64_t>(sysconf(_SC_PAGESIZE));
    vm_statistics64_data_t pages{};
    mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
    const mach_port_t host = mach_host_self();
    if (host_statistics64(host, HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&pages), &count) ==
        KERN_SUCCESS)
        state.available = (static_cast<int64_t>(pages.free_count) + pages.inactive_count) * page;
    mach_port_deallocate(mach_task_self(), host);
    mach_task_basic_info_data_t own{};
    count = MACH_TASK_BASIC_INFO_COUNT;
    if (task_info(mach_task_self(), MACH_TASK_BASIC_INFO, reinterpret_cast<task_info_t>(&own),
                  &count) == KERN_SUCCESS)
        state.resident = static_cast<int64_t>(own.resident_size);
    return state;
}

}  // namespace sterna
