"""asyncio without Kubernetes: logs, work queue, reconcile loop, supervisor. NOT a client or server of anything."""
