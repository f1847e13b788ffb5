// The one function of this library that Rust's programs call, which wine 8 lacks.
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);  // advapi32: RtlGenRandom

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T bytes) {
    return SystemFunction036(data, (ULONG)bytes);
}
