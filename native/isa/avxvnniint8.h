// on: x86_64 | requires: avx2,fma,f16c,avxvnni,avxvnniint8 | rank: 3 | built: by name | extends: avxvnni by products | flags: -mavx2 -mfma -mf16c -mavxvnni -mavxvnniint8
// avxvnni with the dot product of signed bytes: Sierra Forest, Arrow Lake, Lunar Lake and later. LLVM's models have it
// no faster than avxvnni (docs/explanation/program.md), so a build has it only if STERNA_ISAS names it.
#pragma once
#define STERNA_SIGNED_DOT 1
#include "isa/avxvnni.h"

namespace {}  // namespace
