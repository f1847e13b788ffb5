// CPUID with what the emulator adds, if it is loaded, for systems that let no CPUID fault. CMake's
// STERNA_EMULATE includes this file before native/runtime/cpu_x86_64.cpp.
#pragma once
#include <cpuid.h>
#include <dlfcn.h>

namespace {

int emulated_cpuid_count(unsigned leaf, unsigned subleaf, unsigned* a, unsigned* b, unsigned* c,
                         unsigned* d) {
    using Add = void (*)(unsigned, unsigned, unsigned*, unsigned*);
    const auto add = reinterpret_cast<Add>(dlsym(RTLD_DEFAULT, "sterna_emulator_cpuid"));
    const int known = __get_cpuid_count(leaf, subleaf, a, b, c, d);
    if (known && add) add(leaf, subleaf, a, d);
    return known;
}

}  // namespace

#define __get_cpuid_count emulated_cpuid_count
