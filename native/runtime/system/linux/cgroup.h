// The limits of the process's control groups: CPU time, and memory.
#pragma once

#include <optional>
#include <string>

namespace sterna {

// Each is the least of the process's cgroups (v1 and v2) and all their parents up to each mount
// point. `root` is put before every path, for tests on a made-up file tree.

// CPUs' worth of time; 0 if no quota is set.
double cgroup_cpu_quota(const std::string& root);

// Bytes that the process may still take; none if no limit is set.
std::optional<double> cgroup_memory_left(const std::string& root);

}  // namespace sterna
