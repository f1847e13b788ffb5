#include "runtime/cpu.h"

#include <algorithm>

#include "runtime/cpu_detect.h"

namespace sterna {
namespace {

bool same_name(std::string_view wanted, std::string_view name) {
    return std::ranges::equal(wanted, name,
                              [](char w, char n) { return (w == '-' ? '_' : w) == n; });
}

bool supports_one(std::string_view name) {
    for (const auto& feature : cpu_info().features)
        if (same_name(name, feature)) return may_use(feature);
    return false;
}

}  // namespace

const CpuInfo& cpu_info() {
    static const CpuInfo info = detect_cpu();
    return info;
}

bool has_feature(std::string_view name) {
    return std::ranges::count(cpu_info().features, name) > 0;
}

bool cpu_supports(std::string_view list) {
    while (!list.empty()) {
        const size_t comma = list.find(',');
        const std::string_view name = list.substr(0, comma);
        if (!name.empty() && !supports_one(name)) return false;
        list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
    }
    return true;
}

}  // namespace sterna
