// The registers that a signal saved.
#pragma once
#include <cpuid.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

namespace {

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

}  // namespace
