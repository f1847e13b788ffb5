// on: riscv64 | requires: v,vlen256 | rank: 2 | flags: -march=rv64gcv_zvl256b -include riscv_vector.h
// RISC-V vectors of 256 bits or more: a vector is one of 32 registers.
#pragma once
#define STERNA_RVV(name) __riscv_##name##m1
#include "isa/rvv.inc"

namespace {

constexpr int kAccumulators = 16;
constexpr int kPanelVectors = 4, kPanelTokens = 4;

}  // namespace
