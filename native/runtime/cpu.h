// What this CPU and this operating system can run. An instruction set is usable only if CPUID lists
// it and the OS saves its registers (XCR0, read by XGETBV; for AMX the kernel says, and must permit
// it). On other architectures nothing is listed and only the scalar unit runs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sterna {

// Order is that of the table in cpu.cpp.
enum class Feature {
    AVX2,  // with FMA, F16C, BMI1 and BMI2: every x86-64-v3 machine has them together
    FMA,
    F16C,
    BMI,
    BMI2,
    AVXVNNI,
    AVXVNNIINT8,
    AVX512F,
    AVX512BW,
    AVX512DQ,
    AVX512VL,
    AVX512VNNI,
    AVX512VBMI,
    AVX512BF16,
    AMX_TILE,
    AMX_INT8,
    AMX_BF16,
};

struct CpuInfo {
    std::string vendor, model;  // CPUID's strings, blanks trimmed; "" where unknown
    std::vector<std::string> features;  // the usable Features in lower case, in the enum's order
    int family = 0, model_id = 0, stepping = 0;  // display values: extended fields included
};

// Detected once, at the first call; thread-safe.
const CpuInfo& cpu_info();

bool has(Feature feature);

// Why the AMX unit is there or not: CPUID does not list tiles; it does, but the system does not save
// their registers or refuses the permission; they may be used. Asks the Linux kernel for them, once
// per process and for all its threads.
enum class TileState { kAbsent, kRefused, kGranted };
TileState tile_state();

// True if a unit built for the comma-separated list, such as "avx512f,avx512bw,fma,f16c", may run
// now; an empty list is always true, an unknown name never. The compiler's spelling ("amx-int8",
// "bmi") is accepted. A list that names an AMX feature asks the Linux kernel for the tile
// registers, once per process and for all its threads.
bool cpu_supports(std::string_view requirement_list);

}  // namespace sterna
