package envoyconf

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	edsv3 "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// Pool is the pool of endpoints that EDS publishes.
type Pool interface {
	// Snapshot returns the current pool. Version 0 means that its endpoints are not known yet.
	Snapshot() *epp.Snapshot
	// Subscribe begins a subscription to changes of the pool.
	Subscribe(wanted epp.Changes) *epp.Subscription
}

// EDS serves the decode endpoints, and every change of them, to Envoy under the name PoolCluster. When a request has failed on all
// endpoints that the EPP chose for it, Envoy may try any endpoint of this list, so prefill endpoints are not in it.
//
// EDS serves any number of streams. An Envoy that loses its stream keeps the last list.
type EDS struct {
	pool  Pool
	cache *cachev3.LinearCache
	xds   serverv3.Server
	end   context.CancelFunc // ends the streams
	known chan struct{}      // closed at the first publication
	last  []*epp.Endpoint    // the last published list
}

// NewEDS makes a server. Its streams wait until Run has published the pool.
func NewEDS(pool Pool) *EDS {
	// Versions of different processes must differ: after a restart, Envoy asks whether what it has is still current.
	cache := cachev3.NewLinearCache(resourcev3.EndpointType, cachev3.WithVersionPrefix(fmt.Sprintf("%016x-", rand.Uint64())))
	alive, end := context.WithCancel(context.Background())
	e := &EDS{pool: pool, cache: cache, end: end, known: make(chan struct{})}
	e.xds = serverv3.NewServer(alive, cache, serverv3.CallbackFuncs{
		StreamOpenFunc: func(ctx context.Context, _ int64, _ string) error { return e.await(ctx, alive) },
	})
	return e
}

// await blocks a new stream until the first publication. The cache would answer it with an empty list, and an Envoy that starts
// would accept requests for a pool that it does not know.
func (e *EDS) await(stream, alive context.Context) error {
	select {
	case <-e.known:
		return nil
	case <-stream.Done():
		return context.Cause(stream)
	case <-alive.Done():
		return context.Cause(alive)
	}
}

// Register makes g serve EDS.
func (e *EDS) Register(g grpc.ServiceRegistrar) {
	edsv3.RegisterEndpointDiscoveryServiceServer(g, e.xds)
}

// Run publishes the endpoints until ctx ends, and then ends all streams, so that a graceful stop does not wait for them. Call it
// once.
func (e *EDS) Run(ctx context.Context) error {
	defer e.end()
	changed := e.pool.Subscribe(epp.MembersChanged) // before the snapshot is read, so that no change is missed
	defer changed.Close()
	// A pool that is not known yet is not an empty one: Envoy keeps the list from before a restart of the EPP.
	if s := e.pool.Snapshot(); s.Version > 0 {
		if err := e.publish(s); err != nil {
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed.Ready():
		}
		if err := e.publish(e.pool.Snapshot()); err != nil {
			return err
		}
	}
}

// publish sends the endpoints of a snapshot to Envoy, unless they are the ones it sent last.
func (e *EDS) publish(s *epp.Snapshot) error {
	decode := make([]*epp.Endpoint, 0, len(s.Endpoints))
	for _, endpoint := range s.Endpoints {
		if endpoint.Role.Has(pd.RoleDecode) {
			decode = append(decode, endpoint)
		}
	}
	if e.last != nil && slices.EqualFunc(decode, e.last, func(a, b *epp.Endpoint) bool { return a.Addr == b.Addr }) {
		return nil
	}
	if e.last == nil {
		defer close(e.known)
	}
	e.last = decode
	if err := e.cache.UpdateResource(PoolCluster, assignment(decode)); err != nil {
		return fmt.Errorf("publishing %d endpoints to Envoy: %w", len(decode), err)
	}
	return nil
}

// assignment returns endpoints in the form of EDS.
func assignment(endpoints []*epp.Endpoint) types.Resource {
	members := make([]*endpointv3.LbEndpoint, len(endpoints))
	for i, e := range endpoints {
		members[i] = &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address:       e.Addr.Addr().String(),
				PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(e.Addr.Port())},
			}}},
		}}}
	}
	return &endpointv3.ClusterLoadAssignment{
		ClusterName: PoolCluster,
		Endpoints:   []*endpointv3.LocalityLbEndpoints{{LbEndpoints: members}},
	}
}
