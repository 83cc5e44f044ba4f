package epp_test

import (
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

func TestNewEndpoint(t *testing.T) {
	for _, c := range []struct {
		name, addr, metrics, role string
		wantAddress, wantMetrics  string
		wantRole                  pd.Role
	}{
		{"IPv4", "10.0.0.1:8000", "", "decode", "10.0.0.1:8000", "10.0.0.1:8000", pd.RoleDecode},
		{"IPv6", "[2001:db8::1]:8000", "", "prefill", "[2001:db8::1]:8000", "[2001:db8::1]:8000", pd.RolePrefill},
		{"IPv4 in IPv6", "[::ffff:10.0.0.1]:8000", "", "prefill-decode", "10.0.0.1:8000", "10.0.0.1:8000", pd.RolePrefill | pd.RoleDecode},
		{"metrics elsewhere", "10.0.0.1:8000", "10.0.0.1:8200", "", "10.0.0.1:8000", "10.0.0.1:8200", pd.RoleDecode},
		{"an unknown role", "10.0.0.1:8000", "", "chef", "10.0.0.1:8000", "10.0.0.1:8000", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			labels := map[string]string{"app": "vllm"}
			if c.role != "" {
				labels[pd.RoleLabel] = c.role
			}
			e := epp.NewEndpoint("ns", "pod-0", netip.MustParseAddrPort(c.addr), c.metrics, labels)
			if e.Address != c.wantAddress || e.Addr.String() != c.wantAddress || e.Metrics != c.wantMetrics || e.Role != c.wantRole {
				t.Errorf("got %+v", e)
			}
			if e.String() != "ns/pod-0" || !maps.Equal(e.Labels, labels) || e.InFlight() != (epp.InFlight{}) {
				t.Errorf("got %s with %v and %v in flight", e, e.Labels, e.InFlight())
			}
		})
	}
}

func pod(name string) *epp.Endpoint {
	return epp.NewEndpoint("ns", name, netip.MustParseAddrPort("10.0.0.1:8000"), "", nil)
}

// One charge is capped, so that tokens never spill over into the count of requests, whatever a client's body claims.
func TestInFlightKeepsItsCountsApart(t *testing.T) {
	const most = 1 << 24 // tokens of one charge
	for _, c := range []struct {
		name   string
		tokens int
		want   int
	}{
		{"none", 0, 0},
		{"some", 1234, 1234},
		{"most", most, most},
		{"more", most + 1, most},
		{"absurdly many", 1 << 50, most},
		{"less than none", -5, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := pod("e")
			var all []*epp.Reservation
			for n := 1; n <= 1000; n++ {
				all = append(all, epp.ReserveAnyway(epp.Claim{Endpoint: e, Add: epp.InFlight{Requests: 1, Tokens: c.tokens}}))
				if got, want := e.InFlight(), (epp.InFlight{Requests: n, Tokens: n * c.want}); got != want {
					t.Fatalf("got %v, want %v", got, want)
				}
			}
			for i, r := range all {
				if i%2 == 0 {
					r.Answered()
				}
				r.End()
			}
			if got := e.InFlight(); got != (epp.InFlight{}) {
				t.Errorf("%v is left", got)
			}
		})
	}
}

func TestLoadTrust(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	const stale = time.Second
	for _, c := range []struct {
		name string
		at   time.Time
		want float64
	}{
		{"never read", time.Time{}, 0},
		{"read now", now, 1},
		{"read in the future", now.Add(time.Hour), 1},
		{"just not stale", now.Add(-stale), 1},
		{"stale", now.Add(-1500 * time.Millisecond), 0.75},
		{"half way", now.Add(-2 * stale), 0.5},
		{"too old", now.Add(-3 * stale), 0},
		{"much too old", now.Add(-time.Hour), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := epp.Load{At: c.at}
			if got := l.Trust(now, stale); got != c.want {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
	if l := (epp.Load{At: now.Add(-1)}); l.Trust(now, 0) != 0 || l.Trust(now.Add(-1), 0) != 1 {
		t.Error("without a time of staleness only what is read now is trusted")
	}
}
