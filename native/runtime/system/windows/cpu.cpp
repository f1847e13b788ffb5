// The CPUs of a thread, which Windows numbers by groups of 64, and what it says of them. A thread runs on those of one
// group at a time.
#include "runtime/cpu.h"

#include <algorithm>

#include "runtime/system/system.h"
#include "runtime/system/windows/api.h"

namespace sterna {

bool system::read_affinity(std::span<uint64_t> words) {
    GROUP_AFFINITY own{};
    if (!GetThreadGroupAffinity(GetCurrentThread(), &own) || own.Group >= words.size())
        return false;
    std::ranges::fill(words, 0);
    words[own.Group] = own.Mask;
    return true;
}

bool system::set_affinity(std::span<const uint64_t> words) {
    GROUP_AFFINITY own{}, wanted{};
    if (!GetThreadGroupAffinity(GetCurrentThread(), &own)) return false;
    const auto has = [&](size_t group) { return group < words.size() && words[group] != 0; };
    size_t group = own.Group;
    if (!has(group))
        for (group = 0; group < words.size() && !has(group); ++group) {
        }
    if (!has(group)) return false;
    wanted.Group = static_cast<WORD>(group);
    wanted.Mask = static_cast<KAFFINITY>(words[group]);
    return SetThreadGroupAffinity(GetCurrentThread(), &wanted, nullptr) != 0;
}

int system::current_cpu() {
    PROCESSOR_NUMBER number{};
    GetCurrentProcessorNumberEx(&number);
    return number.Group * 64 + number.Number;
}

// A program asks for tile registers by EnableProcessOptionalXStateFeatures. No machine was at hand to try it on.
bool system::offers_tiles() { return false; }

bool system::grants_tiles() { return false; }

void system::add_emulated(uint32_t, uint32_t, uint32_t&, uint32_t&) {}

// winnt.h: PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE, and PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE, which older headers lack.
bool system::offers(std::string_view feature) {
    if (feature == "dotprod") return IsProcessorFeaturePresent(43);
    if (feature == "i8mm") return IsProcessorFeaturePresent(66);
    return false;
}

void system::name_cpu(CpuInfo&) {}

}  // namespace sterna
