// The floating-point control state that Sterna's arithmetic assumes: round to nearest even,
// denormals kept (no FTZ/DAZ), no traps. A caller may have changed it (torch.set_flush_denormal,
// -ffast-math start-up code), and a thread inherits the state of the thread that made it, so every
// entry point and every worker sets it for the length of its work. Costs about 10 ns.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace sterna {

class FpEnvScope {
  public:
    FpEnvScope() : saved_(read()) { write(kDefault); }
    ~FpEnvScope() { write(saved_); }
    FpEnvScope(const FpEnvScope&) = delete;
    FpEnvScope& operator=(const FpEnvScope&) = delete;

  private:
#if defined(__x86_64__)
    using Word = uint32_t;
    static constexpr Word kDefault = 0x1F80;  // MXCSR after reset: all exceptions masked, nearest
    static Word read() { return _mm_getcsr(); }
    static void write(Word value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
    using Word = uint64_t;
    static constexpr Word kDefault = 0;  // FPCR: nearest, no FZ, no default NaN, no traps
    static Word read() {
        Word value;
        __asm__ volatile("mrs %0, fpcr" : "=r"(value));
        return value;
    }
    static void write(Word value) { __asm__ volatile("msr fpcr, %0" : : "r"(value) : "memory"); }
#elif defined(__riscv) && defined(__riscv_flen)
    using Word = unsigned long;
    static constexpr Word kDefault = 0;  // fcsr: nearest even; RISC-V has no flush-to-zero
    static Word read() {
        Word value;
        __asm__ volatile("frcsr %0" : "=r"(value));
        return value;
    }
    static void write(Word value) { __asm__ volatile("fscsr %0" : : "r"(value) : "memory"); }
#else
    using Word = int;
    static constexpr Word kDefault = 0;
    static Word read() { return 0; }
    static void write(Word) {}
#endif
    Word saved_;
};

}  // namespace sterna
