# What a folder of fuzzers includes when it has said `targets` and, of each, <target>_sources, runs_, longest_ and, where wanted,
# dictionary_, include_ and link_.
set(fuzzing ${CMAKE_CURRENT_LIST_DIR})
set(native ${fuzzing}/../..)

function(compile_checked target)
  set_target_properties(${target} PROPERTIES C_STANDARD 11 C_EXTENSIONS ON)
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR} ${fuzzing} ${native} ${native}/wire ${native}/include)
  target_compile_options(${target} PRIVATE -O1 -g1 -fno-omit-frame-pointer -Wno-deprecated-declarations)
  target_link_libraries(${target} PRIVATE egpu_driver egpu_cuda_headers Threads::Threads ${CMAKE_DL_LIBS} m)
  if(EGPU_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined)
    target_compile_definitions(${target} PRIVATE EGPU_LIBFUZZER)
    target_link_options(${target} PRIVATE -fsanitize=fuzzer,address,undefined)
  elseif(NOT EGPU_SANITIZE) # otherwise it has those of the whole build
    target_compile_options(${target} PRIVATE -fsanitize=address,undefined -fno-sanitize-recover=undefined)
    target_link_options(${target} PRIVATE -fsanitize=address,undefined)
  endif()
endfunction()

foreach(target IN LISTS targets)
  set(program egpu_fuzz_${target})
  add_executable(${program} EXCLUDE_FROM_ALL ${${target}_sources})
  compile_checked(${program})
  target_include_directories(${program} PRIVATE ${include_${target}})
  target_link_libraries(${program} PRIVATE ${link_${target}})
  if(NOT EGPU_FUZZ)
    target_sources(${program} PRIVATE ${fuzzing}/replay.c)
  endif()
  list(APPEND programs ${program})
endforeach()
add_custom_target(fuzzers DEPENDS ${programs})

# What is left of a lease that was lost, or of a call that did not return, is no leak of the product's.
set(environment ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1)
if(EGPU_FUZZ)
  set(FUZZ_SECONDS 60 CACHE STRING "how long each target runs in `make fuzz`")
  set(fuzz_commands "")
  foreach(target IN LISTS targets)
    set(found ${CMAKE_BINARY_DIR}/corpus/${target})
    set(dictionary "")
    if(dictionary_${target})
      set(dictionary -dict=${dictionary_${target}})
    endif()
    list(APPEND fuzz_commands
      COMMAND ${CMAKE_COMMAND} -E echo "-- ${target}"
      COMMAND ${CMAKE_COMMAND} -E make_directory ${found}
      COMMAND ${CMAKE_COMMAND} -E env ${environment} $<TARGET_FILE:egpu_fuzz_${target}> -max_total_time=${FUZZ_SECONDS} -max_len=${longest_${target}}
              -timeout=20 -print_final_stats=1 -artifact_prefix=${CMAKE_BINARY_DIR}/ ${dictionary} ${found} ${CMAKE_CURRENT_SOURCE_DIR}/corpus/${target})
  endforeach()
  add_custom_target(fuzz ${fuzz_commands} DEPENDS ${programs} USES_TERMINAL VERBATIM)
  return()
endif()

# ---- the tests ----

# Whether there is a clang that can link libFuzzer.
if(NOT EGPU_SANITIZE)
  find_program(EGPU_CLANG NAMES clang clang-14 clang-15 clang-16 clang-17 clang-18 clang-19)
  file(REMOVE ${CMAKE_CURRENT_BINARY_DIR}/probe)
  if(EGPU_CLANG)
    file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/probe.c "int LLVMFuzzerTestOneInput(const unsigned char *a, unsigned long b) { return a && b ? 0 : 0; }\n")
    execute_process(COMMAND ${EGPU_CLANG} -fsanitize=fuzzer,address,undefined ${CMAKE_CURRENT_BINARY_DIR}/probe.c -o ${CMAKE_CURRENT_BINARY_DIR}/probe
                    OUTPUT_QUIET ERROR_QUIET)
  endif()
  if(EXISTS ${CMAKE_CURRENT_BINARY_DIR}/probe)
    set(libfuzzer TRUE)
  endif()
endif()
if(libfuzzer)
  set(build ${CMAKE_BINARY_DIR}/libfuzzer)
  add_test(NAME fuzz.configure COMMAND ${CMAKE_COMMAND} -S ${CMAKE_SOURCE_DIR} -B ${build} -G ${CMAKE_GENERATOR} -DEGPU_FUZZ=ON
                                       -DCMAKE_C_COMPILER=${EGPU_CLANG} -DEGPU_CUDA_INCLUDE=${EGPU_CUDA_INCLUDE} -DCMAKE_BUILD_TYPE=Release)
  add_test(NAME fuzz.build COMMAND ${CMAKE_COMMAND} --build ${build} --target fuzzers)
  set_tests_properties(fuzz.configure PROPERTIES FIXTURES_SETUP fuzz_configured)
  set_tests_properties(fuzz.build PROPERTIES FIXTURES_REQUIRED fuzz_configured FIXTURES_SETUP fuzz_built TIMEOUT 1200)
else()
  add_test(NAME fuzz.libfuzzer COMMAND ${CMAKE_COMMAND} -E echo
           "skipped: no clang that links -fsanitize=fuzzer (Debian: clang, libclang-rt-14-dev): mutations of the corpus instead")
  set_tests_properties(fuzz.libfuzzer PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped:")
  add_test(NAME fuzz.build COMMAND ${CMAKE_COMMAND} --build ${CMAKE_BINARY_DIR} --target fuzzers)
  set_tests_properties(fuzz.build PROPERTIES FIXTURES_SETUP fuzz_built TIMEOUT 1200)
endif()
foreach(target IN LISTS targets)
  list(GET runs_${target} 0 mutations)
  list(GET runs_${target} 1 runs)
  set(corpus ${CMAKE_CURRENT_SOURCE_DIR}/corpus/${target})
  if(libfuzzer)
    add_test(NAME fuzz.${target}
             COMMAND ${CMAKE_COMMAND} -DPROGRAM=${build}/tests/fuzz/egpu_fuzz_${target} -DCORPUS=${corpus} -DFOUND=${build}/found/${target} -DRUNS=${runs}
                     -DLONGEST=${longest_${target}} -DDICTIONARY=${dictionary_${target}} -P ${fuzzing}/run.cmake)
  else()
    add_test(NAME fuzz.${target} COMMAND egpu_fuzz_${target} ${corpus} ${mutations})
  endif()
  set_tests_properties(fuzz.${target} PROPERTIES FIXTURES_REQUIRED fuzz_built ENVIRONMENT ${environment} TIMEOUT 600)
endforeach()
