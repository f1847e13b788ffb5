#include "runtime/cpu_detect.h"

#if defined(__aarch64__)
#include "runtime/system/system.h"

namespace sterna {

CpuInfo detect_cpu() {
    CpuInfo info;
    system::name_cpu(info);
    for (const char* name : {"dotprod", "i8mm", "bf16", "sve", "sve2"})
        if (system::offers(name)) info.features.emplace_back(name);
    if (info.features.empty() || info.features.front() != "dotprod")
        std::erase(info.features, "i8mm");
    return info;
}

bool may_use(std::string_view) { return true; }

}  // namespace sterna
#endif
