#include "check.h"
#include <atomic>
/* What a graph keeps of the program's, and lets go when the last that has it goes. */
static void CUDART_CB gone(void *count) { ++*(std::atomic<int> *)count; }
int main() {
    std::atomic<int> kept(0), own(0);
    cudaGraph_t graph;
    cudaUserObject_t object, other;
    OK(cudaGraphCreate(&graph, 0));
    REFUSED(cudaUserObjectCreate(&object, &kept, gone, 1, cudaUserObjectNoDestructorSync));
    OK(cudaUserObjectCreate(&other, &own, gone, 2, cudaUserObjectNoDestructorSync));
    FAILS(cudaErrorInvalidValue, cudaUserObjectCreate(&other, &own, gone, 1, 0));
    OK(cudaUserObjectRetain(other, 1));
    OK(cudaUserObjectRelease(other, 2));
    CHECK(own == 0);
    OK(cudaUserObjectRelease(other, 1));
    for (int i = 0; i < 10000 && own == 0; i++) usleep(1000);
    CHECK(own == 1);
    OK(cudaGraphRetainUserObject(graph, object, 1, 0));
    OK(cudaUserObjectRelease(object, 1)); /* the graph has it */
    OK(cudaGraphRetainUserObject(graph, object, 1, 0));
    OK(cudaGraphReleaseUserObject(graph, object, 1));
    CHECK(kept == 0);
    OK(cudaGraphDestroy(graph));
    for (int i = 0; i < 10000 && kept == 0; i++) usleep(1000);
    CHECK(kept == 1);
    return 0;
}
