"""The load per second and minute (requests, bytes, latencies, top lists), and alerts on spikes and drops."""
