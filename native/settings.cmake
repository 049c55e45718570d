# Compiler settings and NVIDIA's headers: included by both builds, the product's (native) and the simulator's (simulator/native).
#
# A build sets EGPU_PACKAGE before: the Python package that its parts are installed into.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_C_FLAGS_RELEASE "-O2 -g")
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_SKIP_RPATH ON) # a source tree runs what is in the build folder: libraries find each other as they do when installed
set(THREADS_PREFER_PTHREAD_FLAG ON)
# The same bytes wherever it is built: debug information and __FILE__ name no folder of whoever builds.
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH repository)
add_compile_options(-ffile-prefix-map=${CMAKE_BINARY_DIR}=build -ffile-prefix-map=${repository}=.)
find_package(Threads REQUIRED)

# -DEGPU_SANITIZE=address,undefined or thread: everything native, instrumented; the first finding ends the program.
set(EGPU_SANITIZE "" CACHE STRING "sanitizers to build everything with: address,undefined or thread; none when empty")
set_property(CACHE EGPU_SANITIZE PROPERTY STRINGS "" address,undefined thread)
if(EGPU_SANITIZE)
  if(NOT EGPU_SANITIZE MATCHES "^(address,undefined|thread)$")
    message(FATAL_ERROR "EGPU_SANITIZE is '${EGPU_SANITIZE}'; it may be address,undefined or thread")
  endif()
  add_compile_options(-fsanitize=${EGPU_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${EGPU_SANITIZE})
endif()

# The headers of CUDA and NVML come from NVIDIA's own Python packages, nvidia-cuda-runtime and nvidia-nvml-dev.
if(NOT EGPU_CUDA_INCLUDE)
  find_program(EGPU_PYTHON NAMES python3 python HINTS ${repository}/.venv/bin NO_CMAKE_SYSTEM_PATH)
  find_package(Python3 COMPONENTS Interpreter QUIET)
  foreach(python IN ITEMS "${Python3_EXECUTABLE}" "${EGPU_PYTHON}" "${repository}/.venv/bin/python")
    if(python AND EXISTS "${python}" AND NOT EGPU_CUDA_INCLUDE)
      execute_process(
        COMMAND "${python}" -c
                "import nvidia,glob,os;print(next((os.path.dirname(f) for p in nvidia.__path__ for f in sorted(glob.glob(p+'/*/include/cuda.h')) if os.path.exists(os.path.dirname(f)+'/nvml.h')),''))"
        OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      if(found)
        set(EGPU_CUDA_INCLUDE "${found}" CACHE PATH "directory of cuda.h and nvml.h")
      endif()
    endif()
  endforeach()
endif()
if(NOT EXISTS "${EGPU_CUDA_INCLUDE}/cuda.h" OR NOT EXISTS "${EGPU_CUDA_INCLUDE}/nvml.h")
  message(FATAL_ERROR "cuda.h and nvml.h were not found: install the Python packages nvidia-cuda-runtime and nvidia-nvml-dev, "
                      "or set -DEGPU_CUDA_INCLUDE=<directory>")
endif()
add_library(egpu_cuda_headers INTERFACE)
target_include_directories(egpu_cuda_headers SYSTEM INTERFACE ${EGPU_CUDA_INCLUDE})

# Every function of nvml.h, as STUB(name) lines: what a libnvidia-ml of ours does not define answers that it is not supported.
file(STRINGS ${EGPU_CUDA_INCLUDE}/nvml.h nvml_lines REGEX "^nvmlReturn_t DECLDIR nvml|^DEPRECATED.*DECLDIR nvml|nvmlReturn_t DECLDIR nvml")
set(nvml_names "")
foreach(line IN LISTS nvml_lines)
  if(line MATCHES "DECLDIR (nvml[A-Za-z0-9_]+)")
    list(APPEND nvml_names ${CMAKE_MATCH_1})
  endif()
endforeach()
list(REMOVE_DUPLICATES nvml_names)
list(TRANSFORM nvml_names REPLACE "(.+)" "STUB(\\1)")
list(JOIN nvml_names "\n" NVML_STUBS)

include_directories(${CMAKE_CURRENT_LIST_DIR}) # "common/clock.h"
