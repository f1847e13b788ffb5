// Instructions that this CPU lacks, emulated, so that the kernel units amx, avx512bf16, avxvnni and avxvnniint8 can be
// tested anywhere with their own machine code:
//
//   c++ -std=c++20 -O3 -march=native -shared -fPIC tests/emulator/emulator.cpp -o emulator.so
//   LD_PRELOAD=$PWD/emulator.so STERNA_ISA=amx pytest tests/native/test_ops.py
//
// It emulates what those units hold beyond AVX2, or AVX-512 with VNNI and VBMI, which the CPU must have:
// AMX-TILE, AMX-INT8, AMX-BF16, VCVTNE2PS2BF16 and VDPBF16PS of AVX512-BF16, VPDPBUSD and VPDPWSSD of AVX-VNNI,
// and VPDPBSSD of AVX-VNNI-INT8.
// An instruction that the CPU does not know raises SIGILL; the handler carries it out on the registers
// that the signal saved, and those right after it that it knows, in a few microseconds: timings mean
// nothing. The core asks sterna_emulator_cpuid what it lists; tile registers that the kernel does not have are
// granted here. Those that it has and refuses stay refused: LDTILECFG would not fault. A build with STERNA_EMULATE
// has vectors of AVX2, so there the CPU needs no more.
//
// What the CPU itself can do, it does. A hypervisor hides AVX-VNNI and AVX512-BF16 in CPUID only: where the
// CPU has them, they run at their own speed, and timings do mean something.
//
// Semantics: Intel SDM vol. 2. What it says raises #UD or #GP ends in SIGILL here.

#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "registers.h"
#include "tiles.h"
#include "vectors.h"

// Adds what is emulated to EAX and EDX of a leaf of CPUID (native/runtime/cpu_x86_64.cpp).
extern "C" void sterna_emulator_cpuid(uint32_t leaf, uint32_t subleaf, uint32_t* a, uint32_t* d) {
    if (leaf != 7) return;
    if (subleaf == 0) {
        *d |= 1u << 22 | 1u << 24 | 1u << 25;  // AMX-BF16, AMX-TILE, AMX-INT8
        if (*a == 0) *a = 1;
    } else if (subleaf == 1) {
        *a |= 1u << 4 | 1u << 5;  // AVX-VNNI, AVX512-BF16
        *d |= 1u << 4;  // AVX-VNNI-INT8
    }
}

namespace {

bool execute(Registers& r, const Instruction& in) {
    if (in.evex) {
        if (in.opcode == 0x52) return in.prefix == kF3 && dot_pairs(r, in);
        return in.opcode == 0x72 && in.prefix == kF2 && convert_two(r, in);
    }
    switch (in.opcode) {
        case 0x50:
            return (in.prefix == k66 || in.prefix == kF2) && dot_product(r, in);
        case 0x52:
            return in.prefix == k66 && dot_product(r, in);
        case 0x49:
            return in.vector_bytes == 16 && configure(in);
        case 0x4B:
            return in.vector_bytes == 16 && move_tile(in);
        case 0x5C:
        case 0x5E:
            return in.vector_bytes == 16 && multiply_tiles(in);
        default:
            return false;
    }
}

using SigactionCall = int (*)(int, const struct sigaction*, struct sigaction*);
using SyscallCall = long (*)(long, ...);

template <class Call>
Call next(const char* name) {
    return reinterpret_cast<Call>(dlsym(RTLD_NEXT, name));
}
int real_sigaction(int signal, const struct sigaction* action, struct sigaction* old) {
    static const auto call = next<SigactionCall>("sigaction");
    return call(signal, action, old);
}

struct sigaction of_program;  // what the program believes to be installed
volatile bool given_back;  // the signal is the program's again

// Not ours: the instruction faults again, or what was sent is sent again, into the program's own handler
// or its end.
void give_back(const siginfo_t* info) {
    given_back = true;
    real_sigaction(SIGILL, &of_program, nullptr);
    const bool sent = info->si_code <= 0;
    if (sent) raise(SIGILL);
}

void on_illegal(int, siginfo_t* info, void* context) {
    Registers r(static_cast<ucontext_t*>(context));
    Instruction in;
    bool any = false;
    // They come in runs: what follows is carried out without a signal of its own.
    while (decode(r, &in) && execute(r, in)) {
        r.advance(in.length);
        any = true;
    }
    if (!any) give_back(info);
}

[[gnu::constructor]] void begin() {
    Registers::find_components();
    struct sigaction action = {};
    action.sa_sigaction = on_illegal;
    action.sa_flags = SA_SIGINFO;
    real_sigaction(SIGILL, &action, &of_program);
}

}  // namespace

// The program's own handler of the signal (Python's faulthandler) waits behind ours.
extern "C" int sigaction(int signal, const struct sigaction* action, struct sigaction* old) {
    if (signal != SIGILL || given_back) return real_sigaction(signal, action, old);
    if (old) *old = of_program;
    if (action) of_program = *action;
    return 0;
}

extern "C" long syscall(long number, ...) noexcept {
    static const auto call = next<SyscallCall>("syscall");
    va_list list;
    va_start(list, number);
    long a[6];
    for (long& value : a) value = va_arg(list, long);
    va_end(list);
    // Linux, Documentation/arch/x86/xstate.rst; before 5.16 neither is known.
    constexpr long kSupported = 0x1021, kRequest = 0x1023, kTileData = 18;
    constexpr uint64_t kTileStates = 3u << 17;
    const long result = call(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (number != SYS_arch_prctl) return result;
    if (a[0] == kSupported) {
        uint64_t& states = *reinterpret_cast<uint64_t*>(a[1]);
        states = (result == 0 ? states : 0) | kTileStates;
        return 0;
    }
    if (a[0] == kRequest && a[1] == kTileData && result != 0) {
        uint64_t states = 0;
        call(number, kSupported, &states);
        if (!(states >> kTileData & 1)) return 0;
    }
    return result;
}
