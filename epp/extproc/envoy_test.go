package extproc

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/envoyconf"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/stack/envoy"
)

// engine is an engine that streams: its answer ends when the test lets it.
type engine struct {
	url    string
	addr   netip.AddrPort
	began  chan *http.Request // with its body read
	bodies chan string
	last   chan struct{} // closed to let answers end
}

func startEngine(t *testing.T) *engine {
	e := &engine{began: make(chan *http.Request, 16), bodies: make(chan string, 16), last: make(chan struct{})}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // it was aborted
		}
		w.Header().Set("Trailer", pd.HeaderOutcome)
		io.WriteString(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
		e.began <- r
		e.bodies <- string(body)
		select {
		case <-e.last:
		case <-r.Context().Done():
		}
		io.WriteString(w, "data: [DONE]\n\n")
		w.Header().Set(pd.HeaderOutcome, "done;completion=2")
	}))
	t.Cleanup(s.Close)
	e.url, e.addr = s.URL, netip.MustParseAddrPort(s.Listener.Addr().String())
	return e
}

// gateway starts a real Envoy before a rig and returns its address. The engines are its pool.
func (r *rig) gateway(t *testing.T, filters envoyconf.Filters, engines ...netip.AddrPort) string {
	t.Helper()
	e, address := startGateway(t, filters, []string{r.conn.Target()}, engines...)
	t.Cleanup(func() {
		// Envoy 1.40 counts here the answers of a picker that it refuses; the client then gets a 500.
		stats, err := e.Stats(within(t), "ext_proc.*(spurious_msgs_received|rejected_header_mutations|streams_failed)")
		if err != nil {
			t.Error(err)
		}
		for name, n := range stats {
			if n > 0 {
				t.Errorf("%s is %d\n%s", name, n, e.Log())
			}
		}
	})
	return address
}

// startGateway starts a real Envoy before pickers and returns its address. The endpoints are its pool.
func startGateway(t testing.TB, filters envoyconf.Filters, pickers []string, endpoints ...netip.AddrPort) (e *envoy.Envoy, address string) {
	t.Helper()
	return launch(t, bootstrap(t, filters, pickers, endpoints...))
}

// bootstrap returns the configuration of an Envoy before pickers. The endpoints are its pool.
func bootstrap(t testing.TB, filters envoyconf.Filters, pickers []string, endpoints ...netip.AddrPort) []byte {
	t.Helper()
	o := envoyconf.Defaults()
	o.Listen, o.Admin, o.Pickers = "127.0.0.1:0", "127.0.0.1:0", pickers
	o.Filters, o.Pool, o.Static, o.PickerTLS.Plaintext = filters, envoyconf.PoolStatic, endpoints, true
	var text bytes.Buffer
	if err := envoyconf.Bootstrap(&text, o); err != nil {
		t.Fatal(err)
	}
	return text.Bytes()
}

// launch starts a real Envoy and returns its address.
func launch(t testing.TB, bootstrap []byte) (e *envoy.Envoy, address string) {
	t.Helper()
	envoy.Require(t)
	e, err := envoy.Start(within(t), bootstrap)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Stop(); err != nil {
			t.Error(err)
		}
	})
	if address, err = e.Listener(within(t), envoyconf.ListenerName); err != nil {
		t.Fatal(err)
	}
	return e, address
}

// Envoy does not end a request that waits in the picker for longer than its message timeout, which does not apply to bodies that are
// streamed in both directions.
func TestEnvoyWaitsForThePick(t *testing.T) {
	const usual, short, waits = "message_timeout: 10s", "message_timeout: 0.05s", 250 * time.Millisecond
	for _, filters := range []envoyconf.Filters{envoyconf.FiltersSingle, envoyconf.FiltersPair} {
		t.Run(string(filters), func(t *testing.T) {
			e := startEngine(t)
			close(e.last)
			p := newPool(e.addr.String())
			p.wait = func(ctx context.Context) error {
				select {
				case <-time.After(waits):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			text := bootstrap(t, filters, []string{startRig(t, p).conn.Target()}, e.addr)
			hasty := bytes.Replace(text, []byte(usual), []byte(short), 1) // the first filter is the picker's
			if bytes.Equal(hasty, text) {
				t.Fatalf("there is no %q in\n%s", usual, text)
			}
			_, gateway := launch(t, hasty)
			resp := postChat(t, gateway, strings.NewReader(prompt))
			if answer, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
				t.Errorf("the client got %d %s, %v", resp.StatusCode, answer, err)
			}
		})
	}
}

func postChat(t *testing.T, gateway string, body io.Reader, fields ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(within(t), http.MethodPost, "http://"+gateway+"/v1/chat/completions", body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// A server that leaves while answers run cuts none of them, in either layout.
func TestEnvoyGoesOnWithoutUs(t *testing.T) {
	for _, filters := range []envoyconf.Filters{envoyconf.FiltersSingle, envoyconf.FiltersPair} {
		t.Run(string(filters), func(t *testing.T) {
			e := startEngine(t)
			p := newPool(e.addr.String())
			r := startRig(t, p)
			gateway := r.gateway(t, filters, e.addr)
			text := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("long ", 60_000) + `"}]}`
			resp := postChat(t, gateway, strings.NewReader(text), pd.HeaderPrefill, "6.6.6.6:6")
			got := wait(t, e.began, "the engine")
			if body := wait(t, e.bodies, "the body"); body != text {
				t.Errorf("the engine got %d bytes, want %d", len(body), len(text))
			}
			if _, err := pd.ParsePlan(got.Header.Get(pd.HeaderPlan)); err != nil || got.Header.Get(pd.HeaderPrefill) != "" {
				t.Errorf("the engine got %v (%v)", got.Header, err)
			}
			p.mustLoad(t, "1/0")
			r.Drain()
			r.grpc.GracefulStop() // it waits for streams, of which none is left
			p.mustLoad(t, "0/0")
			close(e.last)
			answer, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != 200 || string(answer) != "data: 1\n\ndata: [DONE]\n\n" {
				t.Errorf("the client got %d %q, %v", resp.StatusCode, answer, err)
			}
			if d := resp.Header.Get(pd.HeaderDecision); d != "local;reason=below-threshold" {
				t.Errorf("decision %q", d)
			}
		})
	}
}

func TestEnvoyEndsRequests(t *testing.T) {
	e := startEngine(t)
	close(e.last)
	p := newPool(e.addr.String())
	r := startRig(t, p, setting(func(c *Config) { c.BodyPause = 100 * time.Millisecond; c.BodyLimit = 1 << 20 }))
	gateway := r.gateway(t, envoyconf.FiltersSingle, e.addr)
	stalled, stall := io.Pipe()
	defer stall.Close()
	go io.WriteString(stall, prompt[:9])
	for _, c := range []struct {
		name   string
		body   io.Reader
		mode   string
		status int
		reason pd.Reason
	}{
		{"body that stops", stalled, "auto", 408, pd.SlowBody},
		{"body that is too large", strings.NewReader(strings.Repeat(" ", 2<<20)), "auto", 413, pd.TooLarge},
		{"body that is no JSON", strings.NewReader("hello"), "auto", 400, pd.BadRequest},
		{"bad mode", strings.NewReader(prompt), "maybe", 400, pd.BadPDHeader},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp := postChat(t, gateway, c.body, pd.HeaderMode, c.mode)
			answer, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != c.status {
				t.Errorf("%d %s %v, want %d", resp.StatusCode, answer, err, c.status)
			}
			if d := resp.Header.Get(pd.HeaderDecision); d != "refused;reason="+string(c.reason) {
				t.Errorf("decision %q", d)
			}
			mustBeError(t, answer, false, "")
		})
	}
	resp := postChat(t, gateway, strings.NewReader(prompt))
	if _, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 {
		t.Errorf("%d %v", resp.StatusCode, err)
	}
	r.gone(t)
	p.mustLoad(t, "0/0")
	all := r.outcomes(t)
	if last := all[len(all)-1]; last.Result == nil || last.Result.End != pd.EndDone || last.Served != e.addr.String() {
		t.Errorf("outcome %+v", last)
	}
}

// askChat sends a chat call and tells what it gets: the status, why it was dropped, and whether the answer came whole. It closes begun
// when the answer's headers have come.
func askChat(ctx context.Context, gateway string, begun chan struct{}) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+gateway+"/v1/chat/completions", strings.NewReader(prompt))
	if err != nil {
		return err.Error()
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	close(begun)
	state := "whole"
	if _, err := io.ReadAll(resp.Body); err != nil {
		state = "broken"
	}
	return fmt.Sprintf("%d %s, %s", resp.StatusCode, resp.Header.Get(pd.HeaderDropped), state)
}

// A request that is evicted ends at the engine too: before its answer its client gets the refusal, and within it a broken answer.
func TestEnvoyEvicts(t *testing.T) {
	for _, filters := range []envoyconf.Filters{envoyconf.FiltersSingle, envoyconf.FiltersPair} {
		for _, answers := range []bool{false, true} {
			t.Run(fmt.Sprint(filters, map[bool]string{false: " before the answer", true: " within the answer"}[answers]), func(t *testing.T) {
				began, aborted := make(chan struct{}), make(chan struct{})
				s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.ReadAll(r.Body) // of an aborted request, nothing
					if answers {
						io.WriteString(w, "data: 1\n\n")
						w.(http.Flusher).Flush()
					}
					close(began)
					<-r.Context().Done()
					close(aborted)
				}))
				t.Cleanup(s.Close)
				addr := netip.MustParseAddrPort(s.Listener.Addr().String())
				p, made := newPool(addr.String()), make(chan *epp.Decision, 1)
				p.choose = func(r *epp.Request) (*epp.Decision, error) {
					d, err := p.local(r, p.endpoints...)
					made <- d
					return d, err
				}
				r := startRig(t, p)
				gateway := r.gateway(t, filters, addr)
				ctx, got, begun := within(t), make(chan string, 1), make(chan struct{})
				go func() { got <- askChat(ctx, gateway, begun) }()
				d := wait(t, made, "the pick")
				wait(t, began, "the engine")
				if answers {
					wait(t, begun, "the answer")
				}
				why := pd.Refuse(pd.Evicted, "Go.")
				why.Token = "evicted"
				awaitEvictable(t, d.Reservation, why)
				wait(t, aborted, "the engine's request to be aborted")
				want := "429 evicted, whole"
				if answers {
					want = "200 , broken"
				}
				if got := wait(t, got, "the client"); got != want {
					t.Errorf("the client gets %q, want %q", got, want)
				}
				if all := r.outcomes(t); len(all) != 1 || all[0].Happened == nil || all[0].Happened.Reason != pd.Evicted {
					t.Errorf("outcomes %+v", all)
				}
				p.mustLoad(t, "0/0")
			})
		}
	}
}
