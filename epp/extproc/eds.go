package extproc

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

// Pool is what EDS needs of the pool.
type Pool interface {
	// Snapshot gives the pool as it is now. Version 0 is the one from before anything was known.
	Snapshot() *epp.Snapshot
	// Changes gives a channel that is closed at the next change of the set of endpoints.
	Changes() <-chan struct{}
}

// EDS tells Envoy which endpoints decode, under the name PoolCluster, and every change of that. Envoy may pick any of them
// when a request has failed on all that the EPP chose for it, so prefill endpoints are not among them.
//
// It serves any number of streams. An Envoy that loses its stream keeps what it was told last.
type EDS struct {
	pool  Pool
	cache *cachev3.LinearCache
	xds   serverv3.Server
	end   context.CancelFunc // ends the streams
	known chan struct{}      // closed when something is published
	last  []*epp.Endpoint    // as published
}

// NewEDS makes a server that has nothing to tell before Run.
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

// await holds up a new stream until there is something to tell. The cache would answer it with an empty list, with which an
// Envoy that starts would take requests for a pool that it does not know.
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

// Run publishes the endpoints until ctx ends, and then ends all streams, so that a graceful stop need not wait for them.
// Call it once.
func (e *EDS) Run(ctx context.Context) error {
	defer e.end()
	changed := e.pool.Changes()
	// A pool that nobody has filled yet is not an empty one: Envoy had better keep what it knows from before a restart.
	if s := e.pool.Snapshot(); s.Version > 0 {
		if err := e.publish(s); err != nil {
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
		changed = e.pool.Changes() // before the snapshot, so that no change is missed
		if err := e.publish(e.pool.Snapshot()); err != nil {
			return err
		}
	}
}

// publish tells Envoy the endpoints of a snapshot, unless they are those it knows.
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

// assignment lists endpoints as Envoy wants them.
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
