// Package netdev exports how many bytes the network devices of this process have received, as a Prometheus collector.
//
// In goes what the kernel counts: /proc/net/dev, of the network namespace of the process, and /sys/class/infiniband. Out comes one
// metric. A sidecar has the namespace of its engine, so it tells what carried a KV cache: a NIXL engine does not know whether UCX used
// RDMA or TCP.
//
// The package knows nothing of engines, and sends nothing.
package netdev
