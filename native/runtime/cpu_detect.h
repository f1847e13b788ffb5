// Functions of cpu.cpp that depend on the architecture: in cpu_ARCHITECTURE.cpp, each empty on other architectures, or
// in cpu_other.cpp where there is no such file.
#pragma once

#include <string_view>

#include "runtime/cpu.h"

namespace sterna {

// Features are listed only if the operating system lets this process use them, and those that they are built on are
// there too: a hypervisor may hide any.
CpuInfo detect_cpu();

// Whether a feature of the list may be used now. The system may have to be asked for it, once per process.
bool may_use(std::string_view feature);

}  // namespace sterna
