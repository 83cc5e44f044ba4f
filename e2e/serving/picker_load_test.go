package serving

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// crowd is a number of streams that have begun and do not end before the test lets them.
type crowd struct {
	leave  context.CancelFunc
	ended  sync.WaitGroup
	status []int
}

// gather opens n streams at once, with prompts of so many tokens, and returns when all have begun. An answer is too long
// to end by itself, and ends with the crowd.
func gather(t *testing.T, f *harness.Fleet, n, tokens int) *crowd {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	c := &crowd{leave: leave, status: make([]int, n)}
	t.Cleanup(c.disperse)
	var begun sync.WaitGroup
	for i := range n {
		q := f.TokensCall(tokens, true)
		q.Tokens = harness.WholeModel
		begun.Add(1)
		c.ended.Go(func() {
			resp, err := f.Open(ctx, q)
			if err != nil {
				t.Errorf("stream %d: %v", i, err)
				begun.Done()
				return
			}
			defer resp.Body.Close()
			c.status[i] = resp.StatusCode
			begun.Done()
			<-ctx.Done()
		})
	}
	begun.Wait()
	for i, status := range c.status {
		if status != http.StatusOK {
			t.Fatalf("stream %d: status %d", i, status)
		}
	}
	return c
}

// disperse ends the streams.
func (c *crowd) disperse() {
	c.leave()
	c.ended.Wait()
}

// mustCount fails unless the picker counts so many requests at the endpoints. What is counted of a request is right before
// its client has the status.
func mustCount(t *testing.T, p harness.Program, want map[string]int) {
	t.Helper()
	if got := counted(t, p); !maps.Equal(got, want) {
		t.Errorf("requests in flight: %v, want %v", got, want)
	}
}

// counted returns how many requests a picker counts at each endpoint.
func counted(t *testing.T, p harness.Program) map[string]int {
	t.Helper()
	state, err := harness.EndpointsOf(p)
	if err != nil {
		t.Fatal(err)
	}
	requests := map[string]int{}
	for _, e := range state.Endpoints {
		requests[e.Address] = e.Requests
	}
	return requests
}

// TestBurst has requests come all at once: each is counted before the next is picked, so they are spread evenly.
func TestBurst(t *testing.T) {
	for _, l := range harness.Layouts() {
		t.Run(l.String(), func(t *testing.T) {
			f := harness.NewStack(t, l, 0, 3)
			const each = 8
			c := gather(t, f, 3*each, harness.Threshold/2)
			even := map[string]int{}
			for _, p := range f.Decode {
				even[p.Addr()] = each
			}
			mustCount(t, f.Pickers[0], even)
			c.disperse()
			f.MustRest(t)
		})
	}
}

// TestAccountedElsewhere has one replica pick and another follow the answers: the one that does not know the reservation
// charges the endpoint anew, and the other's ends because no endpoint takes it over.
func TestAccountedElsewhere(t *testing.T) {
	f := harness.NewFleet(t, 0, 1)
	picks, accounts := f.StartPicker(t), f.StartPicker(t)
	bootstrap := bootstrapFor(t, f, "pair", picks)
	const accountant, cluster, end = "stat_prefix: acct", "  - name: epp\n", "\n  # The second listener of this Envoy."
	before, after, found := strings.Cut(bootstrap, accountant)
	_, other, alsoFound := strings.Cut(bootstrapFor(t, f, "pair", accounts), cluster)
	other, _, ends := strings.Cut(other, end)
	if !found || !alsoFound || !ends {
		t.Fatal("the bootstrap has no accountant, or no cluster of pickers")
	}
	after = strings.Replace(after, "cluster_name: epp", "cluster_name: other", 1)
	other = "  - name: other\n" + strings.Replace(other, "&unlimited", "", 1)
	f.Front = harness.StartEnvoy(t, before+accountant+strings.Replace(after, end, "\n"+other+end, 1))
	const streams = 9
	c := gather(t, f, streams, harness.Threshold/2)
	mustCount(t, accounts, map[string]int{f.Decode[0].Addr(): streams})
	f.Eventually(t, "requests in flight where they were picked", func() (string, bool) {
		left := counted(t, picks)[f.Decode[0].Addr()]
		return fmt.Sprint(left), left == 0
	})
	mustCount(t, accounts, map[string]int{f.Decode[0].Addr(): streams})
	c.disperse()
	f.MustRest(t)
}

// bootstrapFor is what makes Envoy ask one picker.
func bootstrapFor(t *testing.T, f *harness.Fleet, mode string, p harness.Program, flags ...string) string {
	t.Helper()
	text, err := harness.Output("tandem", append([]string{"envoy-config", "--listen=127.0.0.1:0", "--admin-address=127.0.0.1:0",
		"--epp=" + p.Addr("extproc"), "--epp-plaintext", "--mode=" + mode}, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestServed has a pod in the pool that is not there, though a page of it can be read: what was picked for it is counted at the
// pod that serves.
func TestServed(t *testing.T) {
	for _, l := range harness.Layouts() {
		t.Run(l.String(), func(t *testing.T) {
			const dead = "127.0.0.1:9"
			f := harness.NewFleet(t, 0, 1)
			f.WriteEndpoints(t, dead)
			text, err := os.ReadFile(f.Endpoints)
			if err != nil {
				t.Fatal(err)
			}
			harness.Replace(t, f.Endpoints, string(text)+"  metricsHost: "+f.Plain.Addr+"\n") // the last entry is the dead one's
			f.StartPicker(t)
			f.StartFront(t, l)
			const streams = 8
			c := gather(t, f, streams, harness.Threshold/2)
			mustCount(t, f.Pickers[0], map[string]int{f.Decode[0].Addr(): streams, dead: 0})
			if f.Front.Stat != nil && f.Front.Stat(t, "cluster.pool.upstream_rq_retry_success") == 0 {
				t.Error("nothing was picked for the dead pod")
			}
			c.disperse()
			f.MustRest(t)
		})
	}
}

// TestSubset has a filter before the picker allow some pods only, as gateways do that route by subsets.
func TestSubset(t *testing.T) {
	for _, mode := range []string{"pair", "single"} {
		t.Run(mode, func(t *testing.T) {
			f := harness.NewFleet(t, 0, 3)
			f.StartPicker(t)
			allowed := f.Decode[1].Addr()
			for _, c := range []struct {
				name, hint string
				status     int
			}{
				{"text", fmt.Sprintf("%q", allowed+", 127.0.0.1:9"), http.StatusOK},
				{"list", fmt.Sprintf("[ %q, %q ]", "127.0.0.1:9", allowed), http.StatusOK},
				{"no endpoint", `"127.0.0.1:9"`, http.StatusServiceUnavailable},
			} {
				t.Run(c.name, func(t *testing.T) {
					frontWithSubset(t, f, mode, c.hint)
					if c.status != http.StatusOK {
						got := f.Send(t, f.TokensCall(harness.Threshold/2, false))
						if got.Status != c.status || harness.Planned(got) != "refused;reason=no-endpoint" {
							t.Errorf("status %d, decision %v", got.Status, got.Decision)
						}
						mustBeOverloaded(t, got, "no-endpoint")
						return
					}
					const streams = 6
					crowd := gather(t, f, streams, harness.Threshold/2)
					mustCount(t, f.Pickers[0], map[string]int{f.Decode[0].Addr(): 0, allowed: streams, f.Decode[2].Addr(): 0})
					crowd.disperse()
					f.MustRest(t)
				})
			}
		})
	}
}

// frontWithSubset runs an Envoy that sets the subset hint before it asks the picker.
func frontWithSubset(t *testing.T, f *harness.Fleet, mode, hint string) {
	t.Helper()
	filters := filepath.Join(t.TempDir(), "filters.yaml")
	if err := os.WriteFile(filters, []byte(`- name: envoy.filters.http.set_metadata
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
    metadata:
    - metadata_namespace: envoy.lb.subset_hint
      value: { x-gateway-destination-endpoint-subset: `+hint+` }
`), 0o600); err != nil {
		t.Fatal(err)
	}
	f.Front = harness.StartEnvoy(t, bootstrapFor(t, f, mode, f.Pickers[0], "--http-filters="+filters))
}

// TestRetry has a decode pod that can answer no request: it says whether another pod may try.
func TestRetry(t *testing.T) {
	failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }))
	t.Cleanup(failing.Close)
	for _, l := range harness.Layouts() {
		t.Run(l.String(), func(t *testing.T) {
			f := harness.NewFleet(t, 0, 2)
			// No budget for prefilling locally what was planned remote: the sidecar refuses, and says that others may try.
			f.Decode[0].Sidecar = harness.StartSidecar(t, f.Decode[0].Engine.Addr, "--fallback-ratio=0", "--fallback-burst=0")
			writePrefill(t, f, failing.Listener.Addr().String())
			f.StartPicker(t)
			f.StartFront(t, l)
			for range 6 {
				q := f.TokensCall(2*harness.Threshold, false)
				got := f.Send(t, q)
				harness.MustMatch(t, got, false, f.Want(t, q))
				if harness.Planned(got) != "local;reason=prefill-failed" {
					t.Errorf("decision %v", got.Decision)
				}
			}
			f.MustRest(t)
		})
	}
}

// writePrefill adds a prefill pod at an address to the pool.
func writePrefill(t *testing.T, f *harness.Fleet, addr string) {
	t.Helper()
	f.Prefill = append(f.Prefill, harness.Engine{Addr: addr})
	f.WriteEndpoints(t)
	f.Prefill = f.Prefill[:len(f.Prefill)-1]
}

// TestTrailersOnlyForClientsThatAsk gives the report of a stream to clients that ask for trailers, and to no others.
func TestTrailersOnlyForClientsThatAsk(t *testing.T) {
	for _, l := range harness.Layouts() {
		t.Run(l.String(), func(t *testing.T) {
			f := harness.NewStack(t, l, 1, 1)
			for name, over := range map[string]*http.Protocols{"HTTP/1.1": protocols(false), "HTTP/2": protocols(true)} {
				for _, asks := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/%v", name, asks), func(t *testing.T) {
						transport := &http.Transport{Protocols: over, DisableKeepAlives: true}
						defer transport.CloseIdleConnections()
						q := f.TokensCall(2*harness.Threshold, true)
						got := ask(t, f, transport, q, asks)
						harness.MustMatch(t, got, true, f.Want(t, q))
						_, err := pd.ParseAnswerSummary(got.Trailer.Get(pd.HeaderOutcome))
						timed := got.Trailer.Get(pd.HeaderTiming) != ""
						if (err == nil) != asks || timed != asks {
							t.Errorf("trailers %v for a client that asks: %v", got.Trailer, asks)
						}
					})
				}
			}
			f.MustRest(t)
		})
	}
}

func protocols(two bool) *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(!two)
	p.SetUnencryptedHTTP2(two)
	return p
}

// ask makes a streamed call over a transport.
func ask(t *testing.T, f *harness.Fleet, over http.RoundTripper, q harness.Call, trailers bool) harness.Reply {
	t.Helper()
	if trailers {
		q.Header = map[string]string{"Te": "trailers"}
	}
	r, err := q.Over(harness.Within(t), over, f.Front.Addr, q.Body(f.Model))
	if err != nil {
		t.Fatal(err)
	}
	return r
}
