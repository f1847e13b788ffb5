#include "runtime/topology.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "runtime/affinity.h"
#include "runtime/cgroup.h"

namespace sterna {
namespace {

std::string first_line(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    return file && std::getline(file, line) ? line : "";
}

std::string_view trimmed(std::string_view text) {
    const size_t first = text.find_first_not_of(" \t\r\n");
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

// A whole number from 0; false for anything else.
bool parse_number(std::string_view text, int64_t& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && value >= 0;
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

// Facts that do not change while the process runs.
struct Machine {
    std::map<int, int> core_of;  // CPU -> the least of its SMT siblings
    std::set<int> slow;  // CPUs of efficiency cores
    std::map<int, std::vector<int>> nodes;
};

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

Machine read_machine(const std::string& root) {
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

Topology restricted_to(const Machine& m, const std::vector<int>& allowed) {
    const std::set<int> sorted(allowed.begin(), allowed.end());
    Topology t;
    t.cpus.assign(sorted.begin(), sorted.end());
    std::map<int, size_t> index;  // key of a core -> its place in t.cores
    for (const int cpu : t.cpus) {
        const auto known = m.core_of.find(cpu);
        const int name = known == m.core_of.end() ? cpu : known->second;
        const auto [at, is_new] = index.emplace(name, t.cores.size());
        if (is_new) t.cores.push_back({{}, m.slow.count(cpu) == 0});
        t.cores[at->second].cpus.push_back(cpu);
    }
    std::set<int> homeless = sorted;
    for (const auto& [id, cpus] : m.nodes) {
        NumaNode node{id, {}};
        for (const int cpu : cpus) {
            if (homeless.erase(cpu)) node.cpus.push_back(cpu);
        }
        if (!node.cpus.empty()) t.nodes.push_back(std::move(node));
    }
    if (homeless.empty()) return t;
    if (t.nodes.empty()) t.nodes.emplace_back();
    std::vector<int>& first = t.nodes.front().cpus;
    first.insert(first.end(), homeless.begin(), homeless.end());
    std::sort(first.begin(), first.end());
    return t;
}

}  // namespace

std::vector<int> parse_cpu_list(std::string_view text) {
    std::set<int> cpus;
    while (!text.empty()) {
        const size_t comma = text.find(',');
        const std::string_view piece = trimmed(text.substr(0, comma));
        text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
        const size_t dash = piece.find('-');
        int64_t first, last;
        if (!parse_number(piece.substr(0, dash), first)) continue;
        if (dash == std::string_view::npos) {
            last = first;
        } else if (!parse_number(piece.substr(dash + 1), last)) {
            continue;
        }
        if (last >= kMaxCpus) continue;
        for (int64_t cpu = first; cpu <= last; ++cpu) cpus.insert(static_cast<int>(cpu));
    }
    return {cpus.begin(), cpus.end()};
}

Topology topology() {
    static const Machine machine = read_machine("");
    Topology t = restricted_to(machine, allowed_cpus());
    t.cpu_quota = cgroup_cpu_quota("");
    return t;
}

Topology topology(const std::string& root, const std::vector<int>& allowed) {
    Topology t = restricted_to(read_machine(root), allowed);
    t.cpu_quota = cgroup_cpu_quota(root);
    return t;
}

}  // namespace sterna
