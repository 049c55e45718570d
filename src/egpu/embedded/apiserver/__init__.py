"""A small Kubernetes API server in one process, for trying, developing and testing. Not Kubernetes: it keeps everything
in memory. docs/apiserver.md says what else it lacks.

What can be stored:

    store             versioned objects, and the log of their changes
    objects           the shape of an object: a plain JSON tree
    resources         the served kinds, each with its rules
    builtin           Kubernetes' own kinds
    pods              what is special about pods
    podspec           specs of pods, their own and those of templates
    workloads         the kinds whose controllers make pods
    crd               CustomResourceDefinitions, and the kinds that they add
    definitions       what a CustomResourceDefinition is refused for
    schema            prunes, defaults and validates an object by its schema
    decoding          what Go's decoder refuses of built-in kinds
    names             which texts may be names, labels and annotations
    models            schemas of Kubernetes' own kinds

What can be done with it:

    calls             one request: who asks for what
    writes            create, replace, patch, apply, bind
    checks            what every write is checked for
    strict            unknown and doubled fields
    patching          PATCH, by its content type
    patch             JSON Patch and JSON Merge Patch
    strategic         strategic merge patch
    applying          the body of a server-side apply
    ownership         who set which field; server-side apply
    fieldsets         sets of fields
    scale             replicas alone
    resize            cpu and memory of a pod in place
    disruption        disruption budgets, and the evictions that they allow
    deletion          delete, at once or when finalizers are done
    gc                deletes what an owner, a namespace or a definition left behind
    reads             get and list
    watch             changes as they happen
    selectors         label and field selectors
    table             what `kubectl get` prints
    workload_columns  the same of the kinds whose controllers make pods
    jsonpath          paths of a CRD's columns
    containers        which container of a pod a request is about
    logs              output of containers
    streaming         exec, attach and port-forward, by WebSocket
    forwarding        connections of port-forward
    spdy              the frames in which they come
    kubelets          asks the kubelets of nodes
    metrics           what pods and nodes use
    absent            what kubectl users may look for, and is not here
    authorization     what a user may do, by the roles in the store
    access_kinds      roles, their bindings, and the kinds that ask what they say
    default_roles     those that are there from the start
    reviews           kinds that answer a question and store nothing
    admission         webhooks
    priority          priority classes
    quota             resource quotas
    policies          admission policies
    matching          which writes they are about
    webhook_client    posts reviews to webhooks
    expressions       what their expressions can speak of
    cel               reads them
    cel_values        what they mean

How it is served:

    serve             on loopback, from the start of one run to the end of the last
    instance          one run of it, everything put together
    app               HTTP: paths, authentication, limits
    handlers          what each method on a path does
    access            bearer tokens and kubeconfig files
    negotiation       content types
    protobuf          requests in protobuf (`kubernetes.proto`)
    status            errors as Status objects
    discovery         which kinds are served
    openapi           the OpenAPI documents
    openapi_protobuf  one of them in protobuf (`openapi.proto`)
"""

from egpu.embedded.apiserver.access import ADMIN, node_user, service_account
from egpu.embedded.apiserver.calls import User
from egpu.embedded.apiserver.serve import Config, ServerHandle, serve

__all__ = ["ADMIN", "Config", "ServerHandle", "User", "node_user", "serve", "service_account"]
