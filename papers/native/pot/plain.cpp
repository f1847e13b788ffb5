// One unit of scalar baselines; CMake compiles this file twice for each vocabulary's flags.
#include "plain.h"

#define STERNA_POT_JOIN3(a, b, c) a##b##_##c
#define STERNA_POT_EXPORT(kind, isa) STERNA_POT_JOIN3(sterna_pot_, kind, isa)
extern "C" const sterna::pot::Table* STERNA_POT_EXPORT(STERNA_POT_KIND, STERNA_POT_SYMBOL)() {
    return &plain::kTable;
}
