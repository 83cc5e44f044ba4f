package envoyconf_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	edsv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	edsservicev3 "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
	"github.com/tandem-serving/tandem/epp/pool"
	"github.com/tandem-serving/tandem/pd"
)

// The real pool fits.
var _ envoyconf.Pool = (*pool.Pool)(nil)

// madePool is a pool that a test fills.
type madePool struct {
	epp.Publisher
	mu       sync.Mutex
	snapshot *epp.Snapshot
}

func newMadePool() *madePool {
	return &madePool{snapshot: &epp.Snapshot{}}
}

func (p *madePool) Snapshot() *epp.Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.snapshot
}

// set makes the pool have the given endpoints.
func (p *madePool) set(members ...member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := &epp.Snapshot{Version: p.snapshot.Version + 1}
	for i, m := range members {
		next.Endpoints = append(next.Endpoints, epp.NewEndpoint("default", fmt.Sprint(i), netip.MustParseAddrPort(m.address), "",
			map[string]string{pd.RoleLabel: m.role}))
	}
	p.snapshot = next
	p.Publish(epp.MembersChanged)
}

type member struct{ role, address string }

// runEDS serves a pool's EDS on g until the test ends.
func runEDS(t *testing.T, p envoyconf.Pool, g *grpc.Server) (stop func()) {
	t.Helper()
	e := envoyconf.NewEDS(p)
	e.Register(g)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// subscribe opens a stream of EDS to a server of p's, as Envoy does, and gives what receives the next assignment:
// its version and addresses.
func subscribe(t *testing.T, p *madePool) (next func() (string, []string), server *grpc.Server, stop func()) {
	t.Helper()
	g := grpc.NewServer()
	stop = runEDS(t, p, g)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		g.Stop()
		<-served
	})
	stream, err := edsservicev3.NewEndpointDiscoveryServiceClient(conn).StreamEndpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	request := &discoveryv3.DiscoveryRequest{ResourceNames: []string{envoyconf.PoolCluster}}
	next = func() (string, []string) {
		t.Helper()
		if err := stream.Send(request); err != nil {
			t.Fatal(err)
		}
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		request.VersionInfo, request.ResponseNonce = answer.VersionInfo, answer.Nonce
		return answer.VersionInfo, addresses(t, answer)
	}
	return next, g, stop
}

func addresses(t *testing.T, answer *discoveryv3.DiscoveryResponse) []string {
	t.Helper()
	list := []string{}
	for _, resource := range answer.Resources {
		var a edsv3.ClusterLoadAssignment
		if err := resource.UnmarshalTo(&a); err != nil {
			t.Fatal(err)
		}
		for _, e := range a.Endpoints[0].LbEndpoints {
			socket := e.GetEndpoint().Address.GetSocketAddress()
			list = append(list, netip.AddrPortFrom(netip.MustParseAddr(socket.Address), uint16(socket.GetPortValue())).String())
		}
	}
	return list
}

func TestEDS(t *testing.T) {
	const a, b, c, six = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "[fd00::1]:8000"
	p := newMadePool()
	next, server, stop := subscribe(t, p)
	steps := []struct {
		name    string
		members []member
		want    []string
	}{
		{"those that decode", []member{{"decode", a}, {"prefill", b}, {"prefill-decode", c}, {"", six}, {"nonsense", "10.0.0.9:1"}},
			[]string{a, c, six}},
		{"one less", []member{{"decode", a}, {"prefill", b}}, []string{a}},
		{"a role changed", []member{{"decode", a}, {"decode", b}}, []string{a, b}},
		{"none", nil, []string{}},
		{"some again", []member{{"decode", c}}, []string{c}},
	}
	versions := map[string]bool{}
	for _, step := range steps {
		t.Run(step.name, func(t *testing.T) {
			p.set(step.members...)
			version, got := next()
			if !slices.Equal(got, step.want) {
				t.Errorf("endpoints %q, want %q", got, step.want)
			}
			if versions[version] {
				t.Errorf("version %s is not new", version)
			}
			versions[version] = true
		})
	}
	t.Run("what Envoy need not know", func(t *testing.T) {
		p.set(member{"decode", c}, member{"prefill", a})
		p.set(member{"decode", b})
		if _, got := next(); !slices.Equal(got, []string{b}) {
			t.Errorf("endpoints %q, want only the next change that matters", got)
		}
	})
	t.Run("end", func(t *testing.T) {
		stop()
		server.GracefulStop() // hangs if a stream goes on
	})
}

// A picker that has just started and knows nothing must not empty the pool of an Envoy that runs.
func TestEDSSaysNothingBeforeItKnows(t *testing.T) {
	p := newMadePool()
	next, _, _ := subscribe(t, p)
	first := make(chan []string)
	go func() {
		_, got := next()
		first <- got
	}()
	select {
	case got := <-first:
		t.Fatalf("told %q before anything is known", got)
	case <-time.After(100 * time.Millisecond): // time for the subscription to come; the test cannot fail for want of it
	}
	p.set(member{"decode", "10.0.0.1:8000"})
	if got := <-first; len(got) != 1 {
		t.Errorf("the first thing told is %q", got)
	}
}

// TestEDSEndsBeforeItKnows: a stream that waits for the pool does not delay the stop of the server.
func TestEDSEndsBeforeItKnows(t *testing.T) {
	_, g, stop := subscribe(t, newMadePool())
	stop()
	g.GracefulStop()
}

// Envoy itself follows the pool.
func TestEnvoyFollowsThePool(t *testing.T) {
	var members []member
	for range 2 {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, r.Context().Value(http.LocalAddrContextKey))
		}))
		defer s.Close()
		members = append(members, member{"decode", s.Listener.Addr().String()})
	}
	p := newMadePool()
	g := grpc.NewServer()
	runEDS(t, p, g)
	// The picker's choice is unknown to Envoy's cluster: it then takes any member.
	(&client.Baseline{Endpoints: "192.0.2.1:1"}).Register(g)
	p.set() // Envoy is not ready before the picker knows its endpoints
	f := startEnvoy(t, g, nil)
	for _, step := range []struct {
		name    string
		members []member
	}{
		{"empty", []member{}}, {"one", members[:1]}, {"another", members[1:]}, {"empty again", []member{}}, {"both", members},
	} {
		p.set(step.members...)
		f.awaitMembers(t, len(step.members), step.members)
		a := f.post(t, http.Header{}, "{}")
		if len(step.members) == 0 {
			if a.status != 503 {
				t.Errorf("%s: answer %+v", step.name, a)
			}
		} else if !slices.ContainsFunc(step.members, func(m member) bool { return m.address == a.body }) {
			t.Errorf("%s: answer %+v", step.name, a)
		}
	}
	f.wantClean(t)
}

// awaitMembers waits until Envoy's cluster has exactly the members. Envoy has no event for that.
func (f *front) awaitMembers(t *testing.T, n int, want []member) {
	t.Helper()
	for t.Context().Err() == nil {
		got, err := f.envoy.Hosts(t.Context(), envoyconf.PoolCluster)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == n && !slices.ContainsFunc(want, func(m member) bool { return !slices.Contains(got, m.address) }) {
			return
		}
	}
}
