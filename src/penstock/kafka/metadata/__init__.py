"""Which broker to ask, what its refusals mean, and the topics a cluster has."""
