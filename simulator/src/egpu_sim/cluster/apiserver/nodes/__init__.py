"""Requests that the kubelet of a pod's node answers.

kubelets    asks the kubelets of nodes
containers  chooses the container of a pod
logs        output of containers
streaming   exec, attach and port-forward, by WebSocket
forwarding  connections of port-forward
spdy        frames of the protocol that carries them
metrics     usage of pods and nodes
"""
