# One source folder is one target, and its link list is exactly what it may include.
#   co_library(plan SOURCES plan.cpp DEPENDS base kernels)
# makes the library co_plan. The order of folders is checked by scripts/layers.
function(co_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LINK" ${ARGN})
  add_library(co_${name} STATIC ${ARG_SOURCES})
  target_include_directories(co_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  foreach(dependency IN LISTS ARG_DEPENDS)
    target_link_libraries(co_${name} PUBLIC co_${dependency})
  endforeach()
  target_link_libraries(co_${name} PUBLIC ${ARG_LINK} Threads::Threads)
endfunction()

# co_test(plan_proof SOURCES proof_test.cpp DEPENDS plan algorithms) : a GoogleTest program.
# LABELS slow leaves it to `make test-all`.
function(co_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPENDS;LINK;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name}_test ${ARG_SOURCES})
  foreach(dependency IN LISTS ARG_DEPENDS)
    target_link_libraries(${name}_test PRIVATE co_${dependency})
  endforeach()
  target_link_libraries(${name}_test PRIVATE ${ARG_LINK} GTest::gtest_main GTest::gmock)
  # What is tested is optimised as it ships; the tests themselves only have to compile soon.
  target_compile_options(${name}_test PRIVATE $<$<CONFIG:Release>:-O1>)
  set(properties TIMEOUT ${ARG_TIMEOUT})
  if(ARG_LABELS)
    list(APPEND properties LABELS "${ARG_LABELS}")
  endif()
  gtest_discover_tests(${name}_test PROPERTIES ${properties} DISCOVERY_TIMEOUT 60)
endfunction()

# libcollective_ops.so: all of the named folders in one library, which every Python module and C++ user
# links, so that a process has one core and one registry of communicators. It exports the names of
# namespace collective_ops alone (collective_ops.map).
function(co_shared_library)
  add_library(collective_ops SHARED)
  target_include_directories(collective_ops PUBLIC ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  foreach(folder IN LISTS ARGN)
    # The objects, not the archive: a linker takes from an archive only what is already asked for.
    target_sources(collective_ops PRIVATE $<TARGET_OBJECTS:co_${folder}>)
    get_target_property(links co_${folder} INTERFACE_LINK_LIBRARIES)
    list(FILTER links EXCLUDE REGEX "^co_")
    target_link_libraries(collective_ops PUBLIC ${links})
  endforeach()
  set(exports ${CMAKE_SOURCE_DIR}/cmake/collective_ops.map)
  target_link_options(collective_ops PRIVATE -Wl,--version-script=${exports} -Wl,-Bsymbolic-functions -Wl,-z,now)
  set_target_properties(collective_ops PROPERTIES LINKER_LANGUAGE CXX LINK_DEPENDS ${exports}
                        INSTALL_RPATH "$ORIGIN" BUILD_WITH_INSTALL_RPATH ON)
  if(DEFINED SKBUILD)
    install(TARGETS collective_ops LIBRARY DESTINATION collective_ops)
  else()
    include(GNUInstallDirs)
    install(TARGETS collective_ops LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/collective_ops DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  endif()
endfunction()

# co_package_program(perf): the executable `perf` goes into the Python package as _perf, beside
# libcollective_ops.so; `collective-ops perf` starts it from there.
function(co_package_program name)
  set_target_properties(${name} PROPERTIES OUTPUT_NAME _${name})
  if(DEFINED SKBUILD OR COLLECTIVE_OPS_PYTHON)
    set_target_properties(${name} PROPERTIES INSTALL_RPATH "$ORIGIN" BUILD_WITH_INSTALL_RPATH ON)
  endif()
  if(DEFINED SKBUILD)
    install(TARGETS ${name} RUNTIME DESTINATION collective_ops)
  elseif(COLLECTIVE_OPS_PYTHON)
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_SOURCE_DIR}/python/collective_ops)
  endif()
endfunction()
