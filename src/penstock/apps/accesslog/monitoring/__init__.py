"""The load: requests, bytes, latencies and tops per second and minute; spikes and drops; alerts."""
