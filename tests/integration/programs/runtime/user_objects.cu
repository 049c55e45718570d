#include "check.h"
#include <atomic>
#include <unistd.h>
/* What a graph keeps until it goes: who has the last reference ends it. */
static std::atomic<int> ended;
static void CUDART_CB end(void *by) { ended += *(int *)by; }
static void until(int count) {
    for (int i = 0; i < 5000 && ended != count; i++) usleep(1000); /* it may be called a little later */
    CHECK(ended == count);
}
int main() {
    static int one = 1, ten = 10;
    cudaUserObject_t object, other;
    cudaGraph_t graph;
    OK(cudaGraphCreate(&graph, 0));
    REFUSED(cudaUserObjectCreate(&object, &one, end, 1, cudaUserObjectNoDestructorSync));
    OK(cudaUserObjectCreate(&other, &ten, end, 2, cudaUserObjectNoDestructorSync));
    OK(cudaUserObjectRetain(object, 1));
    OK(cudaUserObjectRelease(object, 1));
    OK(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove)); /* ours is the graph's now */
    OK(cudaGraphRetainUserObject(graph, other, 1, 0));
    OK(cudaGraphReleaseUserObject(graph, other, 1));
    CHECK(ended == 0);
    OK(cudaUserObjectRelease(other, 2));
    until(10);
    OK(cudaGraphDestroy(graph));
    until(11);
    FAILS(cudaErrorInvalidValue, cudaUserObjectCreate(&object, &one, end, 1, 0));
    return 0;
}
