"""A small Kubernetes for a laptop: API server, controllers, kubelets and a scheduler.

apiserver      the Kubernetes API, in memory
kubelet        a node whose containers are processes
controllers    deployments, daemon sets, jobs and the like
scheduler      the default filters, then the extender
dynamic        dynamic resource allocation: what the three share
trees          objects as plain JSON trees, and functions for them
processes      processes of components: started, watched, restarted, ended
forked         Python processes without their imports' time: forks of a server
fork_server    this server, a process with all modules imported
ports          ports of components, reserved for the cluster's life
statedir       directory of its files, for one cluster at a time
janitor        cleans up after a killed cluster
streams        protocol between API server and kubelets about running containers
cluster        all of it together, with the components of a product if there are any: `egpu-sim up`
kubernetes     Kubernetes's own programs in the place of API server, controllers and scheduler
readiness      waits until a cluster takes pods
log_lines      lines of containers' log files
container_log  one of these files, for `kubectl logs`
"""
