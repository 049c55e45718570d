#include "check.h"
#include <dlfcn.h>
/* Numbers of graphs and of their nodes; looked up by name, for they are younger than many compilers, and drivers. */
template <typename... T> static cudaError_t call(const char *name, T... arguments) {
    void *found = dlsym(RTLD_DEFAULT, name);
    CHECK(found != nullptr);
    return ((cudaError_t(*)(T...))found)(arguments...);
}
int main() {
    cudaGraph_t graph, other, found;
    cudaGraphExec_t exec;
    cudaGraphNode_t node, next;
    unsigned first = 0, second = 0, made = 0;
    unsigned long long tools = 0, later = 0;
    OK(cudaGraphCreate(&graph, 0));
    OK(cudaGraphCreate(&other, 0));
    OK(cudaGraphAddEmptyNode(&node, graph, nullptr, 0));
    OK(cudaGraphAddEmptyNode(&next, graph, &node, 1));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    if (!HAS(call("cudaGraphGetId", graph, &first))) return 0; /* a driver before 13.1 */
    OK(call("cudaGraphGetId", other, &second));
    CHECK(first != second);
    OK(call("cudaGraphExecGetId", exec, &made));
    OK(call("cudaGraphNodeGetContainingGraph", next, &found));
    CHECK(found == graph);
    OK(call("cudaGraphNodeGetLocalId", node, &first));
    OK(call("cudaGraphNodeGetLocalId", next, &second));
    CHECK(first != second);
    OK(call("cudaGraphNodeGetToolsId", node, &tools));
    OK(call("cudaGraphNodeGetToolsId", next, &later));
    CHECK(tools != later);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(other));
    OK(cudaGraphDestroy(graph));
    return 0;
}
