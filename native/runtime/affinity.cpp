#include "runtime/affinity.h"

#include <algorithm>
#include <thread>

#include "runtime/system/system.h"

namespace sterna {

CpuSet::CpuSet(std::span<const int> cpus) {
    for (const int cpu : cpus) {
        if (cpu >= 0 && cpu < kMaxCpus) words_[at(cpu)] |= uint64_t{1} << bit(cpu);
    }
}

bool CpuSet::read() { return system::read_affinity(words_); }

bool CpuSet::apply() const { return system::set_affinity(words_); }

int current_cpu() {
    const int cpu = system::current_cpu();
    return cpu < kMaxCpus ? cpu : -1;
}

std::vector<int> allowed_cpus() {
    std::vector<int> cpus;
    CpuSet set;
    const bool known = set.read();
    for (int cpu = 0; known && cpu < kMaxCpus; ++cpu) {
        if (set.contains(cpu)) cpus.push_back(cpu);
    }
    if (cpus.empty()) {
        const int count = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
        for (int cpu = 0; cpu < count; ++cpu) cpus.push_back(cpu);
    }
    return cpus;
}

AffinityScope::AffinityScope(const CpuSet* wanted) {
    if (!wanted || !previous_.read() || previous_ == *wanted) return;
    changed_ = wanted->apply();
}

AffinityScope::~AffinityScope() {
    if (changed_) previous_.apply();
}

}  // namespace sterna
