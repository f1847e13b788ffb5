// on: riscv64 | requires: v | rank: 1 | flags: -march=rv64gcv_zvl128b -include riscv_vector.h
// RISC-V vectors of 128 bits or more: a vector is two registers, so that there are sixteen.
#pragma once
#define STERNA_RVV(name) __riscv_##name##m2
#include "isa/rvv.inc"

namespace {

constexpr int kAccumulators = 8;
constexpr int kPanelVectors = 2, kPanelTokens = 4;  // next to a weight's and x's bytes as int16

}  // namespace
