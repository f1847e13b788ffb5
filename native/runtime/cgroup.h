// The CPU time that the process's control groups grant.
#pragma once

#include <string>

namespace sterna {

// Least quota of the process's cgroups (v1 and v2) and all their parents up to each mount point, in
// CPUs; 0 if none is set. `root` is put before every path, for tests on a made-up file tree.
double cgroup_cpu_quota(const std::string& root);

}  // namespace sterna
