# One target of libFuzzer's from its corpus, the same inputs each time:
#
#   cmake -DPROGRAM=FILE -DCORPUS=FOLDER -DFOUND=FOLDER -DRUNS=N -DLONGEST=BYTES [-DDICTIONARY=FILE] -P run.cmake
#
# What it finds goes into FOUND, which is emptied first; nothing is written into the corpus.
file(REMOVE_RECURSE ${FOUND})
file(MAKE_DIRECTORY ${FOUND}/corpus)
set(dictionary "")
if(DICTIONARY)
  set(dictionary -dict=${DICTIONARY})
endif()
execute_process(
  COMMAND ${PROGRAM} -runs=${RUNS} -seed=1 -max_len=${LONGEST} -timeout=120 -artifact_prefix=${FOUND}/ -verbosity=0 -print_final_stats=1
          ${dictionary} ${FOUND}/corpus ${CORPUS}
  RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${PROGRAM}: ${result}; the input is in ${FOUND}: it belongs into ${CORPUS} when the fault is mended")
endif()
