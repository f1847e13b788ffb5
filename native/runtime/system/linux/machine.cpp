// The processor and its memory, as sysfs and procfs describe them.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "runtime/affinity.h"
#include "runtime/system/linux/cgroup.h"
#include "runtime/system/system.h"
#include "runtime/topology.h"

namespace sterna {
namespace {

std::string first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    return file && std::getline(file, line) ? line : "";
}

// Numbers n of the entries of a folder that are called prefix + n, ascending.
std::vector<int> numbered(const std::string& folder, std::string_view prefix) {
    std::set<int> found;
    std::error_code error;
    std::filesystem::directory_iterator entry(folder, error), end;
    for (; !error && entry != end; entry.increment(error)) {
        const std::string name = entry->path().filename().string();
        int64_t n;
        if (name.compare(0, prefix.size(), prefix) == 0 &&
            parse_number(std::string_view(name).substr(prefix.size()), n) && n < kMaxCpus) {
            found.insert(static_cast<int>(n));
        }
    }
    return {found.begin(), found.end()};
}

// Intel's hybrid processors have a performance monitor for each kind of core. Everything that is
// not in cpu_core is slow: a third kind (low-power islands) is slower still.
bool find_slow_by_monitors(const std::string& devices, const std::vector<int>& cpus, Machine& m) {
    const std::vector<int> fast = parse_cpu_list(first_line(devices + "/cpu_core/cpus"));
    if (fast.empty() || parse_cpu_list(first_line(devices + "/cpu_atom/cpus")).empty())
        return false;
    for (const int cpu : cpus) {
        if (!std::binary_search(fast.begin(), fast.end(), cpu)) m.slow.insert(cpu);
    }
    return true;
}

// Elsewhere the CPUs are ranked by a number, and split at its widest step if that is a clear one:
// favoured cores of one kind differ by up to a tenth, kinds of cores by a quarter and more (Zen 5c
// from Zen 5: 0.65; Arm's smallest cores: below 0.5). With three kinds only the slowest is slow.
bool find_slow_by_rank(const std::map<int, int64_t>& rank, Machine& m) {
    constexpr double kClear = 0.85;
    std::set<int64_t> values;
    for (const auto& [cpu, value] : rank) values.insert(value);
    double widest = kClear;
    int64_t least_fast = 0;
    for (auto low = values.begin(); low != values.end(); ++low) {
        const auto high = std::next(low);
        if (high == values.end()) break;
        const double ratio = static_cast<double>(*low) / static_cast<double>(*high);
        if (ratio < widest) widest = ratio, least_fast = *high;
    }
    for (const auto& [cpu, value] : rank) {
        if (value < least_fast) m.slow.insert(cpu);
    }
    return least_fast > 0;
}

void find_slow(const std::string& devices, const std::vector<int>& cpus, Machine& m) {
    if (find_slow_by_monitors(devices, cpus, m)) return;
    // Relative speed (Arm, and x86 from Linux 6.12 on); the firmware's scale; the highest clock.
    for (const char* file :
         {"/cpu_capacity", "/acpi_cppc/highest_perf", "/cpufreq/cpuinfo_max_freq"}) {
        std::map<int, int64_t> rank;
        for (const int cpu : cpus) {
            const std::string line =
                first_line(devices + "/system/cpu/cpu" + std::to_string(cpu) + file);
            int64_t value;
            if (parse_number(trimmed(line), value) && value > 0) rank[cpu] = value;
        }
        if (find_slow_by_rank(rank, m)) return;
    }
}

}  // namespace

Machine system::read_machine(const std::string& root) {
    const std::string devices = root + "/sys/devices", cpu_folder = devices + "/system/cpu/cpu",
                      node_folder = devices + "/system/node";
    Machine m;
    const std::vector<int> cpus = numbered(devices + "/system/cpu", "cpu");
    for (const int cpu : cpus) {
        // Unlike core_id, the list of siblings does not repeat on every socket.
        const std::vector<int> siblings = parse_cpu_list(
            first_line(cpu_folder + std::to_string(cpu) + "/topology/thread_siblings_list"));
        const bool sound = std::binary_search(siblings.begin(), siblings.end(), cpu);
        m.core_of[cpu] = sound ? siblings.front() : cpu;
    }
    find_slow(devices, cpus, m);
    for (const int node : numbered(node_folder, "node")) {
        m.nodes[node] =
            parse_cpu_list(first_line(node_folder + "/node" + std::to_string(node) + "/cpulist"));
    }
    return m;
}

double system::cpu_quota(const std::string& root) { return cgroup_cpu_quota(root); }

std::map<int, int64_t> system::data_caches(const std::string& root) {
    const std::string folder = root + "/sys/devices/system/cpu/cpu0/cache";
    std::map<int, int64_t> sizes;
    for (const int index : numbered(folder, "index")) {
        const std::string entry = folder + "/index" + std::to_string(index);
        std::string size = first_line(entry + "/size");
        int64_t unit = 1;
        for (const auto& [name, bytes] : {std::pair('K', 1 << 10), {'M', 1 << 20}, {'G', 1 << 30}})
            if (size.ends_with(name)) unit = bytes, size.pop_back();
        int64_t level, count;
        // A CPU may be taken offline meanwhile, or a field empty.
        if (parse_number(trimmed(first_line(entry + "/level")), level) &&
            parse_number(trimmed(size), count) && level < 10 && count < INT64_MAX / unit &&
            trimmed(first_line(entry + "/type")) != "Instruction")
            sizes[static_cast<int>(level)] = count * unit;
    }
    return sizes;
}

system::MemoryState system::memory_state(const std::string& root) {
    MemoryState state;
    const auto pages = [](int name) {
        return static_cast<int64_t>(sysconf(name)) * sysconf(_SC_PAGESIZE);
    };
    state.total = pages(_SC_PHYS_PAGES);
    state.available = pages(_SC_AVPHYS_PAGES);  // fewer than what is available, which a file tells
    std::ifstream file(root + "/proc/meminfo");
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string name;
        int64_t kilobytes;
        if (words >> name >> kilobytes && name == "MemAvailable:")
            state.available = kilobytes << 10;
    }
    if (const auto left = cgroup_memory_left(root);
        left && *left < static_cast<double>(state.available))
        state.available = static_cast<int64_t>(*left);
    std::ifstream statm(root + "/proc/self/statm");
    int64_t size, resident;
    if (statm >> size >> resident) state.resident = resident * sysconf(_SC_PAGESIZE);
    return state;
}

}  // namespace sterna
