// Prefixes, registers and addresses of an instruction (Intel SDM vol. 2, sections 2.3 to 2.7).
#pragma once
#include <stdint.h>
#include <string.h>

#include "registers.h"

namespace {

enum Prefix { kNone, k66, kF3, kF2 };  // as VEX.pp counts them

struct Instruction {
    bool evex = false;
    Prefix prefix = kNone;
    int vector_bytes = 16;
    uint8_t opcode = 0;  // of the map 0F 38
    int reg = 0, rm = 0, vvvv = 0;  // register numbers
    bool memory = false;  // rm is memory:
    bool broadcast = false;  // of which each lane takes the same four bytes
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
        const bool masked = p[3] & 0x87;  // zeroing, a mask
        if (masked || (p[3] & 0x60) != 0x40 || !(p[2] & 4)) return false;  // 512 bits only
        in.evex = true;
        in.broadcast = p[3] & 0x10;  // of registers it would say how to round
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
    if (in.broadcast && !in.memory) return false;
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
            const int unit = !in.evex ? 1 : in.broadcast ? 4 : in.vector_bytes;
            in.address = static_cast<int8_t>(p[size]) * unit;
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

}  // namespace
