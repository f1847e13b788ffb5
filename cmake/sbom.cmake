# What a wheel contains of others' work, as CycloneDX says it, in its dist-info's folder sboms (PEP 770). It names no time
# and no machine, so that two builds have the same bytes. The page's files have their versions in their LICENSES.md.
if(NOT SKBUILD_METADATA_DIR)
  return()
endif()

set(sbom_components "")
function(sterna_component type name version licence what)
  string(APPEND sbom_components
"${separator}\n    {\"type\": \"${type}\", \"name\": \"${name}\", \"version\": \"${version}\",\n     \"licenses\": [{\"expression\": \"${licence}\"}], \"description\": \"${what}\"}")
  set(sbom_components "${sbom_components}" PARENT_SCOPE)
  set(separator "," PARENT_SCOPE)
endfunction()

execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --version OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE nanobind_version)
file(STRINGS ${STERNA_ROOT}/src/sterna/server/webui/vendor/LICENSES.md page_text)
string(JOIN " " page_text ${page_text})
function(sterna_page_component name npm licence)
  if(NOT page_text MATCHES "${name} ([0-9][0-9.]*[0-9]) \\(npm: ${npm}\\)")
    message(FATAL_ERROR "vendor/LICENSES.md: must name the version of ${npm} as '${name} VERSION (npm: ${npm})'")
  endif()
  sterna_component(library ${npm} ${CMAKE_MATCH_1} "${licence}" "in the chat page")
  set(sbom_components "${sbom_components}" PARENT_SCOPE)
endfunction()

sterna_component(library nanobind "${nanobind_version}" BSD-3-Clause "compiled into the modules")
sterna_component(library robin-map "of nanobind ${nanobind_version}" MIT "compiled into the modules")
if(STERNA_ZIG)
  sterna_component(library libc++ "of zig ${STERNA_ZIG}" "Apache-2.0 WITH LLVM-exception" "the C++ library, with libc++abi, libunwind and compiler-rt, linked into the modules")
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND WIN32)
  sterna_component(library libstdc++ "of GCC ${CMAKE_CXX_COMPILER_VERSION}" "GPL-3.0-or-later WITH GCC-exception-3.1" "the C++ library, linked into the modules")
endif()
sterna_page_component(marked marked "MIT AND BSD-3-Clause")
sterna_page_component(Prism prismjs MIT)
sterna_page_component(KaTeX katex MIT)
sterna_page_component(pdf.js pdfjs-dist Apache-2.0)
sterna_component(machine-learning-model nano "${SKBUILD_PROJECT_VERSION}" Apache-2.0 "the built-in model of Python source, trained for Sterna")

file(CONFIGURE OUTPUT sterna.cdx.json CONTENT
"{
  \"bomFormat\": \"CycloneDX\",
  \"specVersion\": \"1.6\",
  \"version\": 1,
  \"metadata\": {\"component\": {\"type\": \"library\", \"name\": \"sterna\", \"version\": \"${SKBUILD_PROJECT_VERSION}\",
    \"purl\": \"pkg:pypi/sterna@${SKBUILD_PROJECT_VERSION}\", \"licenses\": [{\"expression\": \"Apache-2.0\"}]}},
  \"components\": [${sbom_components}
  ]
}
")
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/sterna.cdx.json DESTINATION ${SKBUILD_METADATA_DIR}/sboms)
