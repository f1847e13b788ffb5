// How many threads are worth starting: the CPUs this process may use (affinity), the physical cores
// behind them, and the CPU time its cgroups grant.
#pragma once

#include <string>

namespace sterna {

struct Topology {
    int allowed_cpus = 1;  // logical CPUs in the affinity mask
    int allowed_cores = 1;  // physical cores that have at least one of them
    double cpu_quota =
        0.0;  // CPUs' worth of time per period, the least of all cgroups; 0 = no limit
};

// Reads affinity and quota at every call (both may change), core siblings once per process.
Topology topology();

// One thread per allowed physical core, at most ceil(quota), at least 1. SMT siblings share the
// load ports and the memory queue, which is what the kernels saturate.
int default_threads();

// Least quota of the process's cgroups (v1 and v2) and all their parents up to each mount point, in
// CPUs; 0 if none is set. `root` is put before every path, for tests on a made-up file tree.
double cgroup_cpu_quota(const std::string& root);

}  // namespace sterna
