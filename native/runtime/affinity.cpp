#include "runtime/affinity.h"

#include <algorithm>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace sterna {

CpuSet::CpuSet(std::span<const int> cpus) {
    for (const int cpu : cpus) {
        if (cpu >= 0 && cpu < kMaxCpus) words_[at(cpu)] |= 1ul << bit(cpu);
    }
}

#if defined(__linux__)

bool CpuSet::read() {
    return sched_getaffinity(0, sizeof(words_), reinterpret_cast<cpu_set_t*>(words_.data())) == 0;
}

bool CpuSet::apply() const {
    const auto* set = reinterpret_cast<const cpu_set_t*>(words_.data());
    return sched_setaffinity(0, sizeof(words_), set) == 0;
}

int current_cpu() {
    const int cpu = sched_getcpu();
    return cpu < kMaxCpus ? cpu : -1;
}

#else

int current_cpu() { return -1; }

bool CpuSet::read() { return false; }

bool CpuSet::apply() const { return false; }

#endif

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
