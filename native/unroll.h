// STERNA_UNROLL(n) before a loop: unroll it, up to n times, so that its accumulators become registers.
//
// The scalar unit is there for checking, and its vectors take several registers each: unrolling it was a third of the
// build's time and of the module's text, for up to 1.7 times its speed. There the word is empty.
#pragma once

#if STERNA_ISA_RANK == 0
#define STERNA_UNROLL(n)
#else
#define STERNA_PRAGMA(text) _Pragma(#text)
#define STERNA_UNROLL(n) STERNA_PRAGMA(GCC unroll n)
#endif

// A fence for the compiler: it keeps nothing of memory in a register across it, and loads nothing early.
#define STERNA_FENCE() asm volatile("" ::: "memory")

// Hides the value of a whole number from the compiler: GCC 12 peels steps of a loop of which it knows how many there
// are, and copies all its accumulators in each of the others.
#define STERNA_HIDDEN(number) asm("" : "+r"(number))
