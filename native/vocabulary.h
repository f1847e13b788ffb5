// The vocabulary of the kernel unit that is being compiled: CMake names its header, one of isa/*.h.
#pragma once
#include STERNA_ISA_HEADER
