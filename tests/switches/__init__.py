"""The effect of each key of the two `configuration_bench.yaml`, seen on a running service from outside."""
