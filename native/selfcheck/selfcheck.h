// A unit's kernels on small inputs that are always the same: what they compute, as digests. It tells whether this CPU,
// hypervisor, emulator or compiler computes what it must.
#pragma once
#include "selfcheck/findings.h"

namespace sterna::selfcheck {

std::vector<Finding> check(const KernelTable& unit);

// A digest for each group, in the order of the check.
struct GroupDigest {
    std::string group;
    uint64_t digest;
};
std::vector<GroupDigest> by_group(const std::vector<Finding>& findings);

// by_group of a check in a child process, which may end by a signal: a unit may have instructions that do not work.
// signal: its number, or 0. Where the system has no such children it is made in this process.
struct Outcome {
    std::vector<GroupDigest> groups;
    int signal = 0;
};
Outcome check_apart(const KernelTable& unit);

}  // namespace sterna::selfcheck
