// The system's header, without the macros that collide with C++.
#pragma once
#define WIN32_LEAN_AND_MEAN
#ifndef NOMINMAX  // GCC's library defines it
#define NOMINMAX
#endif
#include <windows.h>
