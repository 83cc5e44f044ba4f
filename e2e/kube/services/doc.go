// Package services makes the Services of a test cluster work, and their names: what kube-proxy and CoreDNS do on a real one.
//
// A configuration of a client that may watch Services and EndpointSlices enters. All addresses of [Range] then work in the
// network namespace of the process: a TCP connection to a Service's address and port goes to one of its endpoints, in turn;
// and a resolver answers at [DNS], for the names of [Domain]. As on a real cluster, the ready endpoints count or, if there
// are none, those that still serve while they end. Connections stay when their endpoint leaves the Service. Without an
// endpoint a connection is refused. A headless Service's name has the addresses of its ready endpoints.
//
// Connections are relayed by this process, so what differs is: an endpoint sees the relay's address for that of its client;
// a client is connected before its endpoint is, and sees a connection that is reset where a real cluster's is refused or never
// made; and packets that are dropped between two pods are not missed by what goes through a Service.
//
// What it does not do: UDP and SCTP, IPv6, session affinity, traffic policies, node ports, load balancers, external names and
// addresses; names of pods, SRV and PTR records; names outside the cluster, which do not exist for its resolver.
//
// It needs Linux, iproute2, and the right to change the network, which package container gives in a namespace of its own. One
// cluster at a time can run in a namespace.
package services
