"""The embedded cluster: an API server, kubelets and a scheduler small enough for a laptop.

cluster      the API server in this process, every component as a process of its own, simulated nodes
kubernetes   Kubernetes's own programs in the place of API server, controllers and scheduler
ports        what components listen on, reserved as long as the cluster lives
processes    those processes: started, watched, started again, ended
dashboard    its dashboard, and a user who may only look
installation  what deploy/ installs beside workloads
credentials  by which scheduler and extender know each other
readiness    when it takes pods
statedir     where they keep their files, for one cluster at a time
janitor      ends what a killed cluster left behind
streams      what API server and kubelets say to each other about running containers
log_lines    lines of containers' log files
container_log  one of these files as `kubectl logs` asks for it
manifests    objects from YAML files
demo         what `egpu demo` shows
apiserver    the Kubernetes API, in memory
kubelet      a node whose containers are processes
controllers  deployments, daemon sets, jobs and the like
scheduler    the default checks, then the extender
"""
