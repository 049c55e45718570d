#include "check.h"
/* Nodes that record events and wait for them, which other events may take the place of. */
int main() {
    cudaEvent_t first, second, found;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaGraphNode_t recorded, waited;
    float apart = -1;
    OK(cudaEventCreate(&first));
    OK(cudaEventCreate(&second));
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphAddEventRecordNode(&recorded, graph, nullptr, 0, first));
    OK(cudaGraphAddEventWaitNode(&waited, graph, &recorded, 1, first));
    OK(cudaGraphEventRecordNodeGetEvent(recorded, &found));
    CHECK(found == first);
    OK(cudaGraphEventRecordNodeSetEvent(recorded, second));
    OK(cudaGraphEventRecordNodeGetEvent(recorded, &found));
    CHECK(found == second);
    OK(cudaGraphEventWaitNodeSetEvent(waited, second));
    OK(cudaGraphEventWaitNodeGetEvent(waited, &found));
    CHECK(found == second);
    FAILS(cudaErrorInvalidValue, cudaGraphEventWaitNodeGetEvent(recorded, &found));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaEventRecord(first, 0));
    OK(cudaGraphLaunch(exec, 0));
    OK(cudaDeviceSynchronize());
    OK(cudaEventElapsedTime(&apart, first, second));
    CHECK(apart >= 0);
    OK(cudaGraphExecEventRecordNodeSetEvent(exec, recorded, first));
    OK(cudaGraphExecEventWaitNodeSetEvent(exec, waited, first));
    OK(cudaEventRecord(second, 0));
    OK(cudaGraphLaunch(exec, 0));
    OK(cudaDeviceSynchronize());
    OK(cudaEventElapsedTime(&apart, second, first));
    CHECK(apart >= 0);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaEventDestroy(first));
    OK(cudaEventDestroy(second));
    return 0;
}
