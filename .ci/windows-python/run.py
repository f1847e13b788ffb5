"""Runs `sterna` in CPython for Windows under wine, whose version 8 lacks four functions of numpy's.

They are written where wine has a stub that ends the process: 12.7.1 of the C standard, for numbers
that lie in a register (float) or behind a pointer (double).
"""

import ctypes
import sys

MACHINE_CODE = {
    b"crealf": "660f6ec1 c3",  # movd xmm0, ecx; ret
    b"cimagf": "48c1e920 660f6ec1 c3",  # shr rcx, 32; movd xmm0, ecx; ret
    b"creal": "f20f1001 c3",  # movsd xmm0, [rcx]; ret
    b"cimag": "f20f104108 c3",  # movsd xmm0, [rcx + 8]; ret
}
PAGE_EXECUTE_READWRITE = 0x40


def fill_gaps() -> None:
    """Write the functions over the stubs."""
    kernel = ctypes.WinDLL("kernel32")
    kernel.GetModuleHandleW.restype = kernel.GetProcAddress.restype = ctypes.c_void_p
    kernel.GetProcAddress.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    kernel.VirtualProtect.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_ulong,
        ctypes.POINTER(ctypes.c_ulong),
    ]
    library = kernel.GetModuleHandleW("ucrtbase.dll")
    for name, text in MACHINE_CODE.items():
        code, before = bytes.fromhex(text), ctypes.c_ulong()
        place = kernel.GetProcAddress(library, name)
        kernel.VirtualProtect(place, len(code), PAGE_EXECUTE_READWRITE, ctypes.byref(before))
        ctypes.memmove(place, code, len(code))


if __name__ == "__main__":
    fill_gaps()
    from sterna.__main__ import main

    sys.argv[0] = "sterna"
    main()
