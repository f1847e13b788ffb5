// One unit of vector kernels. CMake compiles this file once per vocabulary, with the flags named in its
// first line; everything but the one exported function lives in an anonymous namespace.
#include STERNA_POT_HEADER
#ifdef STERNA_POT_UNROLLS
#include "unit.h"  // rvv.h has loops of its own: its vectors have no size
#endif

#define STERNA_POT_JOIN(a, b) a##b
#define STERNA_POT_EXPORT(isa) STERNA_POT_JOIN(sterna_pot_vector_, isa)
extern "C" const sterna::pot::Table* STERNA_POT_EXPORT(STERNA_POT_SYMBOL)() { return &kTable; }
