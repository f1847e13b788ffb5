// The processor as the system describes it: physical cores behind the logical CPUs, which of them are
// fast, the memory they are near to, and the CPU time that the process is granted. What to make of it is
// decided in Python (runtime.py).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace sterna {

// What does not change while the process runs.
struct Machine {
    std::map<int, int> core_of;  // CPU -> the least of its SMT siblings
    std::set<int> slow;  // CPUs of efficiency cores
    std::map<int, std::vector<int>> nodes;
};

struct Core {
    std::vector<int> cpus;  // its logical CPUs (SMT siblings) that may be used, ascending
    bool performance = true;  // false: an efficiency core of a hybrid processor
};

struct NumaNode {
    int id = 0;
    std::vector<int> cpus;  // CPUs that may be used, ascending
};

struct Topology {
    std::vector<int> cpus;  // logical CPUs that may be used, ascending
    std::vector<Core> cores;  // physical cores that have at least one of them, by first CPU
    std::vector<NumaNode> nodes;  // NUMA nodes that have at least one of them, by id
    // CPUs' worth of time per period, the least of all limits; 0 = no limit
    double cpu_quota = 0.0;
};

// The CPUs of the calling thread. Affinity and quota are read at every call (both may change), the
// machine's description once per process.
Topology topology();

// The topology with `root` before every path and a list of allowed CPUs, for tests on a made-up tree.
// Whatever is missing or damaged is taken for the plain case: a core for each CPU, all of one kind,
// one node, no quota.
Topology topology(const std::string& root, const std::vector<int>& allowed);

// Without blanks, tabs and ends of lines on either side.
std::string_view trimmed(std::string_view text);
// A whole number from 0; false for anything else.
bool parse_number(std::string_view text, int64_t& value);
// "0-3,8" -> {0, 1, 2, 3, 8}, ascending. Pieces that are damaged or beyond kMaxCpus are left out.
std::vector<int> parse_cpu_list(std::string_view text);

}  // namespace sterna
