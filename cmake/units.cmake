# The kernel units of this architecture, native/isa/*.h, and the flags of their objects. The core and papers/, which adds
# layouts, compile for the same units.
#
# Each is compiled with the flags of its first line. Another architecture's headers are passed over, and those whose
# flags the compiler lacks: a wheel for others must have all. Units that are built by name need to be in STERNA_ISAS.
# Sets STERNA_UNITS, and for each of them unit_NAME_rank, _needs, _extends, _by and _flags.
file(GLOB isa_headers CONFIGURE_DEPENDS ${STERNA_ROOT}/native/isa/*.h)
# Nothing is thrown through a kernel, so tables for unwinding it would be 36 kB of a wheel for nothing. Windows walks all
# stacks by such tables, and without them GCC 12 keeps fewer of avx2's accumulators in registers. Wheels of other
# architectures have fewer units.
set(STERNA_NO_UNWINDING "")
if(architecture STREQUAL "x86_64" AND NOT WIN32)
  set(STERNA_NO_UNWINDING -fno-exceptions -fno-asynchronous-unwind-tables -fno-unwind-tables)
endif()
set(STERNA_KERNEL_FLAGS "")
set(STERNA_LIGHT_FLAGS "")
set(STERNA_KERNEL_WARNINGS "")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Partial redundancy elimination copies the accumulators of an unrolled loop to the stack: 54 moves next to the 24 dot
  # products of the GEMM's inner loop, and none without it. The others look for vectors in straight code, and make variants
  # for constants, where kernels have written out both.
  set(STERNA_KERNEL_FLAGS -fno-tree-pre -fno-tree-slp-vectorize -fno-ipa-cp-clone)
  # -O2 unrolls only what asks for it, and inlines here as -O3 does: a sixth to a quarter less to compile. On vectors of
  # 512 bits loops of few tokens are faster with it (tests/foreign/speed.json), on avx2 they are as fast (median of 51
  # loops 1.00, i8 up to 1.4 times faster). On avxvnni groups of few tokens lose 10 to 18 %, so it keeps -O3. So do all
  # kernels of rows, attention and recurrence: a recurrent model's prompts are up to 1.45 times as fast with it.
  set(STERNA_LIGHT_FLAGS -O2 --param=max-inline-insns-single=200 --param=max-inline-insns-auto=30
      --param=inline-min-speedup=15 --param=early-inlining-insns=14)
  if(architecture STREQUAL "aarch64")
    # Scheduling before registers are given out moves loads ahead until accumulators go to the stack: t5 takes 18.4
    # modelled cycles a line with it and 15.6 without (tests/foreign/speed.json).
    list(APPEND STERNA_KERNEL_FLAGS -fno-schedule-insns)
  endif()
  if(WIN32)
    # On Windows it takes the stack to be aligned to 16 bytes and to vectors at once (GCC's bug 54412).
    list(APPEND STERNA_KERNEL_FLAGS -Wa,-muse-unaligned-vector-move)
  endif()
  # It is wrong about GCC 12's own AVX-512 intrinsics (_mm512_undefined), and warns where a vector is a type's argument.
  set(STERNA_KERNEL_WARNINGS -Wno-maybe-uninitialized -Wno-ignored-attributes)
elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # A unit that extends another has no use for the kernels that it takes from there.
  set(STERNA_KERNEL_WARNINGS -Wno-unneeded-internal-declaration)
endif()
set(STERNA_ISAS "" CACHE STRING "kernel units to build, as 'scalar;avx512'; empty: all that are not built by name")
option(STERNA_EMULATE "for tests: AVX-512, AVX10 and AVX-VNNI units of AVX2 instructions" OFF)
set(emulator ${STERNA_ROOT}/tests/emulator)
set(unknown ${STERNA_ISAS})
foreach(header IN LISTS isa_headers)
  get_filename_component(name ${header} NAME_WE)
  list(REMOVE_ITEM unknown ${name})
endforeach()
if(unknown OR (STERNA_ISAS AND NOT scalar IN_LIST STERNA_ISAS))
  message(FATAL_ERROR "STERNA_ISAS: must be names of native/isa/*.h, scalar one of them, but got '${STERNA_ISAS}'")
endif()
set(STERNA_UNITS "")
# Whether a compiler knows a unit's flags is seen without linking: zig would compile its C++ library for each of them.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
foreach(header IN LISTS isa_headers)
  get_filename_component(name ${header} NAME_WE)
  if(STERNA_ISAS AND NOT name IN_LIST STERNA_ISAS)
    continue()
  endif()
  file(STRINGS ${header} first LIMIT_COUNT 1)
  if(NOT first MATCHES "^// (on: ([a-z0-9_]+) \\| )?requires: ?([a-z0-9_,]*) ?\\| rank: ([0-9]+) \\|( built: by name \\|)?( extends: ([a-z0-9_]+) by (products|tiles|floats) \\|)? flags: ?(.*)$")
    message(FATAL_ERROR "${header}: the first line must be '// on: ARCHITECTURE | requires: … | rank: N | flags: …', without 'on' for all, with 'built: by name |', and 'extends: UNIT by products |', 'by tiles |' or 'by floats |', before flags or not")
  endif()
  set(built_on "${CMAKE_MATCH_2}")
  set(needs "${CMAKE_MATCH_3}")
  set(rank "${CMAKE_MATCH_4}")
  set(by_name "${CMAKE_MATCH_5}")
  set(extends "${CMAKE_MATCH_7}")
  set(by "${CMAKE_MATCH_8}")
  separate_arguments(flags UNIX_COMMAND "${CMAKE_MATCH_9}")
  if(STERNA_ZIG)  # it takes names of CPUs alone, and features after them
    list(TRANSFORM flags REPLACE "^-march=armv8.2-a" "-mcpu=generic+v8_2a")
    list(TRANSFORM flags REPLACE "^-march=rv64gcv" "-mcpu=baseline_rv64+v")
  endif()
  if((built_on AND NOT built_on STREQUAL architecture) OR (by_name AND NOT STERNA_ISAS))
    continue()
  endif()
  if(STERNA_ISAS AND extends AND NOT extends IN_LIST STERNA_ISAS)
    if(NOT by STREQUAL "products")
      message(FATAL_ERROR "STERNA_ISAS: ${name} extends ${extends}, so it must have ${extends} too")
    endif()
    set(extends "")  # it is compiled whole
  endif()
  if(STERNA_EMULATE AND needs MATCHES "avx512|avxvnni")
    message(STATUS "sterna: ${name} is emulated: this build is for tests alone")
    string(REGEX REPLACE ",avx(512|vnni|10)[a-z0-9_]*" "" needs "${needs}")
    list(FILTER flags EXCLUDE REGEX "avx512|avxvnni|avx10|prefer-vector-width")
    list(APPEND flags -O1 -include ${emulator}/intrinsics.h)
  endif()
  string(REPLACE ";" " " flag_text "${flags}")
  set(CMAKE_REQUIRED_FLAGS "${flag_text}")
  check_cxx_compiler_flag("" sterna_has_${name})
  unset(CMAKE_REQUIRED_FLAGS)
  if(NOT sterna_has_${name})
    sterna_pass_over("a kernel unit" ${name} "${flag_text}")
    continue()
  endif()
  foreach(property rank needs extends by flags)
    set(unit_${name}_${property} ${${property}})
  endforeach()
  list(APPEND STERNA_UNITS ${name})
endforeach()
unset(CMAKE_TRY_COMPILE_TARGET_TYPE)

# Makes a target, of objects of one unit's code, ready to be compiled; `light` for layouts.
function(sterna_unit_target target name)
  set(flags ${unit_${name}_flags})
  target_compile_options(${target} PRIVATE
    ${STERNA_FLAGS} ${STERNA_KERNEL_FLAGS} ${flags} ${STERNA_KERNEL_WARNINGS} -Wno-uninitialized)
  if(NOT name STREQUAL "avx2")
    target_compile_options(${target} PRIVATE ${STERNA_NO_UNWINDING})
  endif()
  if("light" IN_LIST ARGN AND ("-mavx512f" IN_LIST flags OR name STREQUAL "avx2")
     AND NOT unit_${name}_by STREQUAL "tiles")
    target_compile_options(${target} PRIVATE ${STERNA_LIGHT_FLAGS})
  endif()
  target_include_directories(${target} PRIVATE ${STERNA_ROOT}/native ${CMAKE_CURRENT_BINARY_DIR})
  target_compile_definitions(${target} PRIVATE
    STERNA_ISA_HEADER="isa/${name}.h" STERNA_ISA_SYMBOL=${name} STERNA_ISA_RANK=${unit_${name}_rank}
    STERNA_EXTENDS=${unit_${name}_extends} STERNA_EXTENDS_NAME="${unit_${name}_extends}")
endfunction()

# The capsule by which a module adds layouts to the core has the digest of the headers that both are compiled with.
file(GLOB headers CONFIGURE_DEPENDS ${STERNA_ROOT}/native/units/*.h ${STERNA_ROOT}/native/scales/layouts.h)
set(digests "")
foreach(header IN LISTS headers)
  file(SHA256 ${header} digest)
  string(APPEND digests ${digest})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
endforeach()
string(SHA256 digest "${digests}")
string(SUBSTRING ${digest} 0 16 digest)
set(STERNA_LAYOUTS_CAPSULE "sterna layouts ${digest}")
