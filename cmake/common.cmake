# Shared by the distributions of this repository (sterna, and papers/): flags, nanobind, objects of every module.
get_filename_component(STERNA_ROOT ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_package(Threads REQUIRED)
if(NOT STERNA_DRIVER)
  # From 3.12 on scikit-build-core asks for the stable ABI; without its component nanobind would build for one version.
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module ${SKBUILD_SABI_COMPONENT})
  execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
                  OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE nanobind_ROOT)
  find_package(nanobind CONFIG REQUIRED)
  # Their headers are those of a system: Python's define again what those of zig's C library have.
  set(STERNA_MODULE NB_STATIC STABLE_ABI NB_SUPPRESS_WARNINGS)
endif()

# Contraction would fuse a multiply and an add on some instruction sets only; errno and trapping
# semantics of the mathematics functions keep sqrt from being one instruction. -O3 is that of a release.
set(STERNA_FLAGS -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra
                 -fvisibility=hidden)

# Under a sanitizer the vector loops compile in minutes at -O3; bits do not depend on it.
set(STERNA_SANITIZE "" CACHE STRING "for tests: sanitizers to build under, as 'address,undefined' or 'thread'")
if(STERNA_SANITIZE)
  list(APPEND STERNA_FLAGS -fsanitize=${STERNA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g1)
  add_link_options(-fsanitize=${STERNA_SANITIZE})
endif()

# The architecture that is built for, as the first lines of unit headers name theirs.
set(architecture "${CMAKE_SYSTEM_PROCESSOR}")
if(CMAKE_OSX_ARCHITECTURES)
  set(architecture "${CMAKE_OSX_ARCHITECTURES}")
endif()
string(TOLOWER "${architecture}" architecture)
if(architecture STREQUAL "amd64")
  set(architecture x86_64)
elseif(architecture STREQUAL "arm64")
  set(architecture aarch64)
endif()

include(CheckCXXCompilerFlag)
option(STERNA_ALL_UNITS "for releases: fail where the compiler lacks a unit of this architecture" OFF)
function(sterna_pass_over what name flags)
  if(STERNA_ALL_UNITS)
    message(FATAL_ERROR "STERNA_ALL_UNITS: must compile ${what} for ${name}, but "
                        "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} refuses ${flags}; use a later compiler")
  endif()
  message(STATUS "sterna: no ${what} for ${name} with this compiler")
endfunction()

# A packager may leave it out.
option(STERNA_TESTING "for tests: the module that only they import, and CPUs that they emulate" ON)

# The folders of native/runtime/system that define what the core asks of this system.
if(WIN32)
  set(STERNA_SYSTEM windows)
elseif(APPLE)
  set(STERNA_SYSTEM macos posix)
elseif(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  set(STERNA_SYSTEM linux posix)
else()
  message(FATAL_ERROR "CMAKE_SYSTEM_NAME: must be Linux, Darwin or Windows, but got ${CMAKE_SYSTEM_NAME}; "
                      "a folder of native/runtime/system for it would serve it")
endif()

# Threads, memory and the CPU: part of every module, each of which has its own threads.
set(machine_sources "")
foreach(name affinity cpu cpu_aarch64 cpu_other cpu_riscv64 cpu_x86_64 finite memory pool reading topology)
  list(APPEND machine_sources ${STERNA_ROOT}/native/runtime/${name}.cpp)
endforeach()
set(system_sources "")
foreach(folder IN LISTS STERNA_SYSTEM)
  file(GLOB sources CONFIGURE_DEPENDS ${STERNA_ROOT}/native/runtime/system/${folder}/*.cpp)
  list(APPEND system_sources ${sources})
endforeach()
# Their systems' headers define macros of any name.
set_source_files_properties(${system_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
list(APPEND machine_sources ${system_sources})
add_library(machine OBJECT ${machine_sources})
target_compile_options(machine PRIVATE ${STERNA_FLAGS})
target_compile_definitions(machine PRIVATE $<$<BOOL:${STERNA_TESTING}>:STERNA_TESTING=1>)
target_include_directories(machine PRIVATE ${STERNA_ROOT}/native)
set(STERNA_LIBRARIES Threads::Threads)
if(WIN32)
  list(APPEND STERNA_LIBRARIES synchronization)
  add_link_options(-static)  # no library but the system's
endif()

# Compiles the small files of targets together: most of their time goes to the same headers.
function(sterna_unity)
  foreach(target IN LISTS ARGN ITEMS machine nanobind-static nanobind-static-abi3)
    if(TARGET ${target})
      set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
    endif()
  endforeach()
endfunction()

if(APPLE AND STERNA_ZIG)
  # That of zig 0.17 ends with a fault when it makes a bundle. Python loads a library as well.
  set(CMAKE_SHARED_MODULE_CREATE_CXX_FLAGS -shared)
endif()

# Readies a module that nanobind added. nanobind takes stderr from <cstdio>, which it leaves to others to include: with the
# stable ABI, Python's headers do not, nor do those of clang's C++ library. zig's linker for macOS reads no list of Python's
# names, which nanobind gives it: it leaves all that are unknown to the process that loads the module.
function(sterna_module target)
  foreach(each ${target} nanobind-static nanobind-static-abi3)
    if(TARGET ${each})
      target_compile_options(${each} PRIVATE -include cstdio)
    endif()
  endforeach()
  if(APPLE AND STERNA_ZIG)
    get_target_property(options ${target} LINK_OPTIONS)
    list(TRANSFORM options REPLACE "^-Wl,@.*" "-Wl,-undefined,dynamic_lookup")
    set_target_properties(${target} PROPERTIES LINK_OPTIONS "${options}")
  endif()
endfunction()
