# What reproduces papers is a module of its own, _papers: the core neither has it nor needs it.
#
# Power-of-two kernels: for each vocabulary pot/*.h that begins with a line of flags (the plainest first), one unit of vector
# kernels and two of scalar baselines, without the compiler's vectorisation and with it.
set(pot_vector_flags -O2)  # as fast, and a quarter less to compile
set(pot_scalar_flags "")
set(pot_auto_flags "")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(pot_scalar_flags -fno-tree-vectorize -fno-tree-slp-vectorize)
  set(pot_auto_flags -fopenmp-simd)
  foreach(kind vector scalar auto)
    list(APPEND pot_${kind}_flags -fno-tree-pre)  # as kernel units have it
  endforeach()
elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  set(pot_scalar_flags -fno-vectorize -fno-slp-vectorize)
  set(pot_auto_flags -fopenmp-simd)
endif()

function(sterna_pot_unit kind name source)  # and the unit's own flags
  set(target pot_${kind}_${name})
  add_library(${target} OBJECT ${source})
  target_compile_options(${target} PRIVATE ${STERNA_FLAGS} ${ARGN}
                         -Wno-maybe-uninitialized -Wno-uninitialized -Wno-unknown-pragmas)
  target_include_directories(${target} PRIVATE native)
  target_compile_definitions(${target} PRIVATE STERNA_POT_HEADER="pot/${name}.h" STERNA_POT_KIND=${kind}
                             STERNA_POT_SYMBOL=${name} STERNA_POT_SUFFIX="-${kind}")
endfunction()

set(pot_list "")
set(pot_units "")
foreach(name scalar avx2 avx512 neon rvv)
  file(STRINGS native/pot/${name}.h first LIMIT_COUNT 1)
  if(NOT first MATCHES "^// (on: ([a-z0-9_]+) \\| )?requires: ?([a-z0-9_,]*) ?\\| rank: ([0-9]+) \\| flags: ?(.*)$")
    message(FATAL_ERROR "native/pot/${name}.h: the first line must be '// on: ARCHITECTURE | requires: … | rank: N | flags: …', without 'on' for all")
  endif()
  set(built_on "${CMAKE_MATCH_2}")
  set(needs "${CMAKE_MATCH_3}")
  separate_arguments(flags UNIX_COMMAND "${CMAKE_MATCH_5}")
  if(built_on AND NOT built_on STREQUAL architecture)
    continue()
  endif()
  string(REPLACE ";" " " flag_text "${flags}")
  set(CMAKE_REQUIRED_FLAGS "${flag_text}")
  check_cxx_compiler_flag("" sterna_has_pot_${name})
  unset(CMAKE_REQUIRED_FLAGS)
  if(NOT sterna_has_pot_${name})
    sterna_pass_over("power-of-two kernels" ${name} "${flag_text}")
    continue()
  endif()
  sterna_pot_unit(vector ${name} native/pot/unit.cpp ${flags} ${pot_vector_flags})
  sterna_pot_unit(scalar ${name} native/pot/plain.cpp ${flags} ${pot_scalar_flags})
  list(APPEND pot_units $<TARGET_OBJECTS:pot_vector_${name}> $<TARGET_OBJECTS:pot_scalar_${name}>)
  string(APPEND pot_list " STERNA_POT_TABLE(vector, ${name}, \"${needs}\")")
  string(APPEND pot_list " STERNA_POT_TABLE(scalar, ${name}, \"${needs}\")")
  if(NOT name STREQUAL scalar)
    sterna_pot_unit(auto ${name} native/pot/plain.cpp ${flags} ${pot_auto_flags})
    list(APPEND pot_units $<TARGET_OBJECTS:pot_auto_${name}>)
    string(APPEND pot_list " STERNA_POT_TABLE(auto, ${name}, \"${needs}\")")
  endif()
endforeach()
file(CONFIGURE OUTPUT generated/pot_list.inc CONTENT "#define STERNA_POT_LIST${pot_list}\n")

nanobind_add_module(_papers NB_STATIC STABLE_ABI native/pot/bindings/module.cpp native/pot/matmul.cpp ${pot_units}
                    $<TARGET_OBJECTS:machine>)
target_compile_options(_papers PRIVATE ${STERNA_FLAGS})
target_include_directories(_papers PRIVATE native ${CMAKE_CURRENT_BINARY_DIR})
target_link_libraries(_papers PRIVATE Threads::Threads)
install(TARGETS _papers LIBRARY DESTINATION sterna/papers)

# The sources that compile alone, for builds with other compilers.
file(GLOB pot_sources CONFIGURE_DEPENDS native/pot/*.h native/pot/standalone.cpp)
list(FILTER pot_sources EXCLUDE REGEX "matmul.h$")
install(FILES ${pot_sources} DESTINATION sterna/papers/pot/source)
