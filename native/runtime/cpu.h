// Instruction sets that this CPU and this operating system support. On x86 an instruction set is usable only if CPUID
// lists it and the OS saves its registers (XCR0, read by XGETBV; for AMX the kernel says, and must permit it); on ARM
// the system says which it lets programs use. Where nothing is listed only the scalar unit runs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sterna {

struct CpuInfo {
    std::string vendor, model;  // x86: CPUID's strings, blanks trimmed; "" where unknown
    std::vector<std::string> features;  // usable ones, in lower case
    int family = 0, model_id = 0,
        stepping = 0;  // x86: extended fields included; ARM: implementer, part, revision
};

// Detected once, at the first call; thread-safe.
const CpuInfo& cpu_info();

// Whether a feature is in the list.
bool has_feature(std::string_view name);

// Why the AMX unit is usable or not: CPUID does not list tiles; it does, but the system does not save their registers
// or refuses the permission; they may be used. Asks the Linux kernel for them, once per process and for all its
// threads.
enum class TileState { kAbsent, kRefused, kGranted };
TileState tile_state();

// True if a unit built for the comma-separated list, such as "avx512f,avx512bw,fma,f16c", may run
// now; an empty list is always true, an unknown name never. The compiler's spelling ("amx-int8",
// "bmi") is accepted. A list that names an AMX feature asks the Linux kernel for the tile
// registers, once per process and for all its threads.
bool cpu_supports(std::string_view requirement_list);

}  // namespace sterna
