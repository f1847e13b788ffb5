// Instructions that this CPU lacks, emulated, so that the kernel units amx and avxvnni can be tested
// anywhere with their own machine code:
//
//   c++ -std=c++20 -O3 -march=native -shared -fPIC tests/emulator.cpp -o emulator.so
//   LD_PRELOAD=$PWD/emulator.so STERNA_ISA=amx pytest tests/test_ops.py
//
// It emulates what those units hold beyond AVX2, or AVX-512 with VNNI and VBMI, which the CPU must have:
// AMX-TILE, AMX-INT8, AMX-BF16, VCVTNE2PS2BF16 of AVX512-BF16, and VPDPBUSD and VPDPWSSD of AVX-VNNI.
// An instruction that the CPU does not know raises SIGILL; the handler carries it out on the registers
// that the signal saved, and those right after it that it knows, in a few microseconds: timings mean
// nothing. CPUID is made to fault (Linux 4.12, where the CPU and the hypervisor allow it), and for the
// extension module alone it lists the features; tile registers that the kernel does not have are granted
// here. Those that it has and refuses stay refused: LDTILECFG would not fault.
//
// What the CPU itself can do, it does. A hypervisor hides AVX-VNNI and AVX512-BF16 in CPUID only: where the
// CPU has them, they run at their own speed, and timings do mean something.
//
// Semantics: Intel SDM vol. 2. What it says raises #UD or #GP ends in SIGILL here.

#include <asm/prctl.h>
#include <cpuid.h>
#include <dlfcn.h>
#include <immintrin.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

namespace {

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

// ---- What a signal saved -------------------------------------------------------------------------

// The XSAVE area of a signal frame, in the standard form (Intel SDM vol. 1, section 13.4).
class Registers {
  public:
    explicit Registers(ucontext_t* context)
        : context_(context), area_(reinterpret_cast<uint8_t*>(context->uc_mcontext.fpregs)) {
        uint32_t magic;  // Linux, asm/sigcontext.h: struct _fpx_sw_bytes
        memcpy(&magic, area_ + 464, sizeof(magic));
        if (magic == FP_XSTATE_MAGIC1) memcpy(&saved_, area_ + 472, sizeof(saved_));
    }

    static void find_components() {
        for (int i = 2; i < kComponents; ++i) {
            unsigned size, offset, c, d;
            __cpuid_count(0xD, i, size, offset, c, d);
            offset_[i] = offset;
            size_[i] = size;
        }
    }

    uint8_t* instruction() const { return reinterpret_cast<uint8_t*>(general(REG_RIP)); }
    void advance(int bytes) { context_->uc_mcontext.gregs[REG_RIP] += bytes; }
    int64_t general(int greg) const { return context_->uc_mcontext.gregs[greg]; }
    void set_general(int greg, uint32_t value) { context_->uc_mcontext.gregs[greg] = value; }
    int64_t numbered(int number) const {  // as in ModRM, SIB and their prefixes
        static constexpr int kOrder[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                           REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                           REG_R12, REG_R13, REG_R14, REG_R15};
        return general(kOrder[number]);
    }

    // Vector registers 0..31, the low `bytes` of one: 32 or 64. What is above them becomes zero.
    void read_vector(int number, void* to, int bytes) {
        for (int at = 0; at < bytes; at += 16) {
            const uint8_t* from = lane(number, at);
            if (from)
                memcpy(static_cast<char*>(to) + at, from, 16);
            else
                memset(static_cast<char*>(to) + at, 0, 16);
        }
    }
    void write_vector(int number, const void* from, int bytes) {
        for (int at = 0; at < 64; at += 16) {
            uint8_t* to = lane(number, at);
            if (!to) continue;
            if (at < bytes)
                memcpy(to, static_cast<const char*>(from) + at, 16);
            else
                memset(to, 0, 16);
        }
    }

  private:
    // Components of the area: 1 SSE, 2 the upper halves of ymm, 6 those of zmm 0..15, 7 zmm 16..31.
    static constexpr int kComponents = 8;
    static inline unsigned offset_[kComponents] = {0, 160}, size_[kComponents] = {0, 256};

    uint8_t* lane(int number, int at) {
        if (number >= 16) return component(7, 64 * (number - 16) + at);
        if (at == 0) return component(1, 16 * number);
        if (at == 16) return component(2, 16 * number);
        return component(6, 32 * number + at - 32);
    }
    // Null where the system does not save it. One in its initial state is zero and need not be in memory.
    uint8_t* component(int which, int at) {
        if (!(saved_ >> which & 1)) return nullptr;
        uint64_t held;
        memcpy(&held, area_ + 512, sizeof(held));
        if (!(held >> which & 1)) {
            memset(area_ + offset_[which], 0, size_[which]);
            held |= uint64_t{1} << which;
            memcpy(area_ + 512, &held, sizeof(held));
        }
        return area_ + offset_[which] + at;
    }

    ucontext_t* context_;
    uint8_t* area_;
    uint64_t saved_ = 3;  // components of this frame, a bit each
};

// ---- Decoding (Intel SDM vol. 2, section 2.3 to 2.7) ------------------------------------------------

enum Prefix { kNone, k66, kF3, kF2 };  // as VEX.pp counts them

struct Instruction {
    bool evex = false;
    Prefix prefix = kNone;
    int vector_bytes = 16;
    uint8_t opcode = 0;  // of the map 0F 38
    int reg = 0, rm = 0, vvvv = 0;  // register numbers
    bool memory = false;  // rm is memory:
    int64_t address = 0;  // base + displacement
    int64_t step = 0;  // index * scale: a tile's stride, else part of the address
    bool has_sib = false;
    int length = 0;
};

bool decode(const Registers& r, Instruction* out) {
    const uint8_t* p = r.instruction();
    Instruction in;
    int rex_r, rex_x, rex_b, size;
    if (p[0] == 0xC4 && (p[1] & 31) == 2 && !(p[2] & 0x80)) {  // VEX, map 0F 38, W0
        in.prefix = static_cast<Prefix>(p[2] & 3);
        in.vvvv = ~p[2] >> 3 & 15;
        in.vector_bytes = p[2] & 4 ? 32 : 16;
        size = 3;
    } else if (p[0] == 0x62 && (p[1] & 15) == 2 && !(p[2] & 0x80)) {
        const bool masked = p[3] & 0x97;  // zeroing, broadcast or rounding, a mask
        if (masked || (p[3] & 0x60) != 0x40 || !(p[2] & 4)) return false;  // 512 bits only
        in.evex = true;
        in.prefix = static_cast<Prefix>(p[2] & 3);
        in.vvvv = (~p[2] >> 3 & 15) | (~p[3] & 8) << 1;
        in.vector_bytes = 64;
        size = 4;
    } else {
        return false;
    }
    rex_r = (~p[1] >> 7 & 1) << 3;
    rex_x = (~p[1] >> 6 & 1) << 3;
    rex_b = (~p[1] >> 5 & 1) << 3;
    in.opcode = p[size++];
    const uint8_t modrm = p[size++];
    const int mod = modrm >> 6, low = modrm & 7;
    in.reg = (modrm >> 3 & 7) | rex_r;
    in.rm = low | rex_b;
    if (in.evex) {
        in.reg |= ~p[1] & 0x10;
        if (mod == 3) in.rm |= rex_x << 1;
    }
    in.memory = mod != 3;
    if (in.memory) {
        bool base = true;
        int base_number = in.rm;
        if (low == 4) {
            const uint8_t sib = p[size++];
            in.has_sib = true;
            const int index = (sib >> 3 & 7) | rex_x;
            if (index != 4) in.step = r.numbered(index) << (sib >> 6);
            base_number = (sib & 7) | rex_b;
            base = mod != 0 || (sib & 7) != 5;
        }
        const bool relative = mod == 0 && low == 5;
        if (mod == 1) {
            in.address = static_cast<int8_t>(p[size]) * (in.evex ? in.vector_bytes : 1);
            size += 1;
        } else if (mod == 2 || relative || !base) {
            int32_t displacement;
            memcpy(&displacement, p + size, 4);
            in.address = displacement;
            size += 4;
        }
        if (relative)
            in.address += reinterpret_cast<int64_t>(p) + size;
        else if (base)
            in.address += r.numbered(base_number);
    }
    in.length = size;
    *out = in;
    return true;
}

// ---- Vector instructions -----------------------------------------------------------------------------

// acc[i] += the sum of count products of lane i, modulo 2^32.
template <class A, class B, int count>
void add_products(int32_t* acc, const void* a, const void* b, int lanes) {
    const A* x = static_cast<const A*>(a);
    const B* y = static_cast<const B*>(b);
    for (int i = 0; i < lanes; ++i) {
        uint32_t sum = static_cast<uint32_t>(acc[i]);
        for (int j = 0; j < count; ++j)
            sum += static_cast<uint32_t>(x[count * i + j] * y[count * i + j]);
        acc[i] = static_cast<int32_t>(sum);
    }
}

// The operand that may be memory.
void read_operand(Registers& r, const Instruction& in, void* to) {
    if (in.memory)
        memcpy(to, reinterpret_cast<void*>(in.address + in.step), in.vector_bytes);
    else
        r.read_vector(in.rm, to, in.vector_bytes);
}

bool dot_product(Registers& r, const Instruction& in) {
    const int bytes = in.vector_bytes;
    int32_t acc[8];
    alignas(32) uint8_t a[32], b[32];
    r.read_vector(in.reg, acc, bytes);
    r.read_vector(in.vvvv, a, bytes);
    read_operand(r, in, b);
    if (in.opcode == 0x50)
        add_products<uint8_t, int8_t, 4>(acc, a, b, bytes / 4);  // VPDPBUSD
    else
        add_products<int16_t, int16_t, 2>(acc, a, b, bytes / 4);  // VPDPWSSD
    r.write_vector(in.reg, acc, bytes);
    return true;
}

uint16_t to_bf16(uint32_t bits) {
    const uint32_t magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) return static_cast<uint16_t>(bits >> 16 | 0x40);  // quiet
    if (magnitude < 0x00800000) return static_cast<uint16_t>(bits >> 16 & 0x8000);
    return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

bool convert_two(Registers& r, const Instruction& in) {  // VCVTNE2PS2BF16
    uint32_t low[16], high[16];
    uint16_t to[32];
    read_operand(r, in, low);
    r.read_vector(in.vvvv, high, 64);
    for (int i = 0; i < 16; ++i) {
        to[i] = to_bf16(low[i]);
        to[16 + i] = to_bf16(high[i]);
    }
    r.write_vector(in.reg, to, 64);
    return true;
}

// ---- Tiles -------------------------------------------------------------------------------------------

struct Tile {
    int rows = 0, row_bytes = 0;
    alignas(64) uint8_t data[16][64];
};
struct Tiles {
    bool configured = false;
    Tile tile[8];
};
thread_local Tiles tiles;

bool load_configuration(const uint8_t* c) {  // LDTILECFG: table 18-1 of vol. 1
    tiles = {};
    if (c[0] == 0) return true;
    if (c[0] != 1 || c[1] != 0) return false;  // a start row is left by an interrupted load only
    for (int i = 2; i < 16; ++i) {
        if (c[i]) return false;
    }
    for (int t = 0; t < 16; ++t) {
        uint16_t row_bytes;
        memcpy(&row_bytes, c + 16 + 2 * t, 2);
        const int rows = c[48 + t];
        if (row_bytes > 64 || rows > 16 || (!row_bytes != !rows)) return false;
        if (t >= 8) {
            if (rows) return false;
            continue;
        }
        tiles.tile[t].rows = rows;
        tiles.tile[t].row_bytes = row_bytes;
        memset(tiles.tile[t].data, 0, sizeof(tiles.tile[t].data));
    }
    tiles.configured = true;
    return true;
}

bool configure(const Instruction& in) {  // 49
    if (in.vvvv) return false;
    if (in.prefix == kNone && in.memory && in.reg == 0) {
        return load_configuration(reinterpret_cast<uint8_t*>(in.address + in.step));
    }
    if (in.prefix == kNone && in.reg == 0 && in.rm == 0) {  // TILERELEASE
        tiles = {};
        return true;
    }
    if (in.prefix == kF2 && !in.memory && tiles.configured && in.reg < 8 &&
        in.rm == 0) {  // TILEZERO
        Tile& t = tiles.tile[in.reg];
        if (!t.rows) return false;
        memset(t.data, 0, sizeof(t.data));
        return true;
    }
    return false;
}

bool move_tile(const Instruction& in) {  // 4B: TILELOADD, TILELOADDT1, TILESTORED
    if (!in.memory || !in.has_sib || !tiles.configured || in.reg >= 8 || in.prefix == kNone ||
        in.vvvv)
        return false;
    Tile& t = tiles.tile[in.reg];
    if (!t.rows) return false;
    if (in.prefix != kF3) memset(t.data, 0, sizeof(t.data));
    for (int row = 0; row < t.rows; ++row) {
        void* memory = reinterpret_cast<void*>(in.address + row * in.step);
        if (in.prefix == kF3)
            memcpy(memory, t.data[row], t.row_bytes);
        else
            memcpy(t.data[row], memory, t.row_bytes);
    }
    return true;
}

// x and w are broadcast and read as double words: of each k one of x's row, a row of w.
template <class X, class W>
void multiply_bytes(Tile& sum, const Tile& x, const Tile& w) {
    const int columns = sum.row_bytes / 4, depth = x.row_bytes / 4;
    for (int m = 0; m < sum.rows; ++m) {
        uint32_t* acc = reinterpret_cast<uint32_t*>(sum.data[m]);
        for (int k = 0; k < depth; ++k) {
            const X* a = reinterpret_cast<const X*>(x.data[m]) + 4 * k;
            const W* b = reinterpret_cast<const W*>(w.data[k]);
            for (int n = 0; n < columns; ++n) {
                acc[n] += static_cast<uint32_t>(a[0] * b[4 * n] + a[1] * b[4 * n + 1] +
                                                a[2] * b[4 * n + 2] + a[3] * b[4 * n + 3]);
            }
        }
    }
}

float low_half(uint32_t pair) { return __builtin_bit_cast(float, pair << 16); }
float high_half(uint32_t pair) { return __builtin_bit_cast(float, pair & 0xFFFF0000); }

void multiply_bf16(Tile& sum, const Tile& x, const Tile& w) {  // TDPBF16PS
    // Denormals are zero whatever the thread's MXCSR says; the signal's return restores that.
    _mm_setcsr(_mm_getcsr() | 0x8040);
    const int columns = sum.row_bytes / 4, depth = x.row_bytes / 4;
    for (int m = 0; m < sum.rows; ++m) {
        float* acc = reinterpret_cast<float*>(sum.data[m]);
        float first[16] = {}, second[16] = {};
        for (int k = 0; k < depth; ++k) {
            const uint32_t a = reinterpret_cast<const uint32_t*>(x.data[m])[k];
            const uint32_t* b = reinterpret_cast<const uint32_t*>(w.data[k]);
            for (int n = 0; n < columns; ++n) {
                first[n] = __builtin_fmaf(low_half(a), low_half(b[n]), first[n]);
                second[n] = __builtin_fmaf(high_half(a), high_half(b[n]), second[n]);
            }
        }
        for (int n = 0; n < columns; ++n) acc[n] += first[n] + second[n];
    }
}

bool multiply_tiles(const Instruction& in) {  // 5C, 5E
    if (in.memory || !tiles.configured || in.reg >= 8 || in.rm >= 8 || in.vvvv >= 8) return false;
    if (in.reg == in.rm || in.rm == in.vvvv || in.reg == in.vvvv) return false;
    Tile& sum = tiles.tile[in.reg];
    const Tile &x = tiles.tile[in.rm], &w = tiles.tile[in.vvvv];
    const bool fit = sum.rows && sum.rows == x.rows && sum.row_bytes == w.row_bytes &&
                     x.row_bytes == 4 * w.rows && sum.row_bytes % 4 == 0;
    if (!fit) return false;
    if (in.opcode == 0x5C) {
        if (in.prefix != kF3) return false;
        multiply_bf16(sum, x, w);
        return true;
    }
    switch (in.prefix) {
        case kF2:
            multiply_bytes<int8_t, int8_t>(sum, x, w);
            break;  // TDPBSSD
        case kF3:
            multiply_bytes<int8_t, uint8_t>(sum, x, w);
            break;  // TDPBSUD
        case k66:
            multiply_bytes<uint8_t, int8_t>(sum, x, w);
            break;  // TDPBUSD
        case kNone:
            multiply_bytes<uint8_t, uint8_t>(sum, x, w);
            break;  // TDPBUUD
    }
    return true;
}

bool execute(Registers& r, const Instruction& in) {
    if (in.evex) return in.opcode == 0x72 && in.prefix == kF2 && convert_two(r, in);
    switch (in.opcode) {
        case 0x50:
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

// ---- Signals, CPUID and system calls -----------------------------------------------------------------

struct sigaction of_program_ill, of_program_segv;  // what the program believes to be installed
volatile bool given_back[2];  // SIGSEGV, SIGILL: the program's again
struct sigaction& of_program(int signal) {
    return signal == SIGILL ? of_program_ill : of_program_segv;
}

// Not ours: the instruction faults again, or what was sent is sent again, into the program's own handler
// or its end.
void give_back(int signal, const siginfo_t* info) {
    given_back[signal == SIGILL] = true;
    real_sigaction(signal, &of_program(signal), nullptr);
    const bool sent = info->si_code <= 0;
    if (sent) raise(signal);
}

void on_illegal(int signal, siginfo_t* info, void* context) {
    Registers r(static_cast<ucontext_t*>(context));
    Instruction in;
    bool any = false;
    // They come in runs: what follows is carried out without a signal of its own.
    while (decode(r, &in) && execute(r, in)) {
        r.advance(in.length);
        any = true;
    }
    if (!any) give_back(signal, info);
}

bool set_cpuid_faults(bool faults) { return syscall(SYS_arch_prctl, ARCH_SET_CPUID, !faults) == 0; }

bool is_sterna(const void* code) {
    Dl_info where;
    return dladdr(code, &where) && where.dli_fname && strstr(where.dli_fname, "/sterna/_native");
}

void on_fault(int signal, siginfo_t* info, void* context) {
    Registers r(static_cast<ucontext_t*>(context));
    const uint8_t* code = r.instruction();
    // A fault of CPUID is one of protection, whose address is 0; code that cannot be read is none.
    const auto* saved = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    constexpr int kGeneralProtection = 13;
    if (saved[REG_TRAPNO] != kGeneralProtection || code[0] != 0x0F || code[1] != 0xA2) {
        give_back(signal, info);
        return;
    }
    const auto leaf = static_cast<uint32_t>(r.general(REG_RAX));
    const auto subleaf = static_cast<uint32_t>(r.general(REG_RCX));
    uint32_t a, b, c, d;
    set_cpuid_faults(false);
    __cpuid_count(leaf, subleaf, a, b, c, d);
    set_cpuid_faults(true);
    if (leaf == 7 && is_sterna(code)) {
        if (subleaf == 0) {
            d |= 1u << 22 | 1u << 24 | 1u << 25;  // AMX-BF16, AMX-TILE, AMX-INT8
            if (a == 0) a = 1;
        } else if (subleaf == 1) {
            a |= 1u << 4 | 1u << 5;  // AVX-VNNI, AVX512-BF16
        }
    }
    r.set_general(REG_RAX, a);
    r.set_general(REG_RBX, b);
    r.set_general(REG_RCX, c);
    r.set_general(REG_RDX, d);
    r.advance(2);
}

void install(int signal, void (*handler)(int, siginfo_t*, void*)) {
    struct sigaction action = {};
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO;
    real_sigaction(signal, &action, &of_program(signal));
}

[[gnu::constructor]] void begin() {
    Registers::find_components();
    install(SIGILL, on_illegal);
    install(SIGSEGV, on_fault);
    if (!set_cpuid_faults(true)) {
        fprintf(stderr, "emulator: this system does not let CPUID fault; nothing is emulated\n");
    }
}

}  // namespace

// The program's own handlers of the two signals (Python's faulthandler) wait behind ours.
extern "C" int sigaction(int signal, const struct sigaction* action, struct sigaction* old) {
    const bool ours = (signal == SIGILL || signal == SIGSEGV) && !given_back[signal == SIGILL];
    if (!ours) return real_sigaction(signal, action, old);
    if (old) *old = of_program(signal);
    if (action) of_program(signal) = *action;
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
