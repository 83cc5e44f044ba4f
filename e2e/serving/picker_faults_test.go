package serving

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/answer"
	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/stack"
)

// TestPickerKilled ends the picker by SIGKILL while answers stream: with the filter pair no answer is cut, and the next
// request gets a JSON error that says when to come back.
func TestPickerKilled(t *testing.T) {
	for _, l := range []harness.Layout{{Proxy: "gateway", Mode: "pair"}, {Proxy: "envoy", Mode: "pair"}} {
		t.Run(l.String(), func(t *testing.T) {
			f := harness.NewStack(t, l, 1, 1)
			const streams = 6
			begun := make(chan struct{}, streams)
			killed := make(chan struct{})
			var running sync.WaitGroup
			var all []harness.Call
			for i := range streams {
				q := f.TokensCall(harness.Threshold/2+i%2*2*harness.Threshold, true)
				q.Tokens = 400
				all = append(all, q)
			}
			want := f.Wants(t, all)
			for i, q := range all {
				running.Go(func() {
					got, err := readSlowly(t, f, q, begun, killed)
					if err != nil {
						t.Errorf("stream %d was cut: %v", i, err)
						return
					}
					harness.MustMatch(t, got, true, want[i])
				})
			}
			for range streams {
				<-begun
			}
			if err := f.Pickers[0].Kill(); err != nil {
				t.Fatal(err)
			}
			close(killed)
			running.Wait()
			got := f.Send(t, f.TokensCall(harness.Threshold/2, false))
			if got.Status != http.StatusServiceUnavailable || got.Header.Get("Retry-After") == "" || !strings.Contains(got.Body, `"error"`) {
				t.Errorf("without a picker: %d %v %s", got.Status, got.Header, got.Body)
			}
			f.MustRest(t)
		})
	}
}

// readSlowly reads the first event of a stream, tells so, and goes on when it may.
func readSlowly(t *testing.T, f *harness.Fleet, q harness.Call, begun chan<- struct{}, goOn <-chan struct{}) (harness.Reply, error) {
	resp, err := f.Open(t.Context(), q)
	if err != nil {
		begun <- struct{}{}
		return harness.Reply{}, err
	}
	defer resp.Body.Close()
	r, err := answer.New(resp)
	if err != nil {
		begun <- struct{}{}
		return r, err
	}
	body := bufio.NewReader(resp.Body)
	_, err = body.Peek(1)
	begun <- struct{}{}
	<-goOn
	if err == nil {
		err = r.ReadStream(body)
	}
	return r, err
}

// TestTwoPickers has requests picked by one replica and accounted by either; then one is killed.
func TestTwoPickers(t *testing.T) {
	for _, l := range harness.Layouts() {
		t.Run(l.String(), func(t *testing.T) {
			f := harness.NewFleet(t, 1, 2)
			f.StartPicker(t)
			f.StartPicker(t)
			f.StartFront(t, l)
			testFleetCrowd(t, f)
			f.MustRest(t)
			if err := f.Pickers[1].Kill(); err != nil {
				t.Fatal(err)
			}
			if l.Proxy == "gateway" { // unlike Envoy it tries no stream again: what comes before it has noticed the death fails
				f.Eventually(t, "the gateway keeps to the picker that lives", func() (string, bool) {
					got := f.Send(t, f.TokensCall(harness.Threshold/2, false))
					return got.Body, got.Status == http.StatusOK
				})
			}
			var after []harness.Call
			for i := range 20 {
				after = append(after, f.TokensCall(harness.Threshold/2, i%2 == 0))
			}
			f.MustServe(t, after)
			f.MustRest(t)
		})
	}
}

// TestPoolChanges rewrites the endpoints file while requests run: pods come and go, and no request fails.
func TestPoolChanges(t *testing.T) {
	for _, l := range harness.Layouts() {
		t.Run(l.String(), func(t *testing.T) {
			f := harness.NewStack(t, l, 1, 2)
			all := f.Decode
			var done atomic.Bool
			var running sync.WaitGroup
			for range 4 {
				running.Go(func() {
					for !done.Load() {
						q := harness.Call{API: pd.APICompletions, Text: "load", Tokens: 4}
						got, err := q.Send(t.Context(), f.Front.Addr, f.Model)
						if err != nil || got.Status != http.StatusOK {
							t.Errorf("while the pool changed: %d %v %s", got.Status, err, got.Body)
							return
						}
					}
				})
			}
			for _, pods := range [][]harness.DecodePod{all[:1], all, all[1:], all} {
				f.Decode = pods
				f.WriteEndpoints(t)
				f.Eventually(t, "decode endpoints", func() (string, bool) {
					state, err := harness.EndpointsOf(f.Pickers[0])
					if err != nil {
						return err.Error(), false
					}
					return fmt.Sprint(len(state.Endpoints)), len(state.Endpoints) == len(pods)+1
				})
				var calls []harness.Call
				for range 10 {
					calls = append(calls, f.TokensCall(harness.Threshold/2, false))
				}
				f.MustServe(t, calls) // and the pods that are there are the ones that serve
			}
			done.Store(true)
			running.Wait()
			f.MustRest(t)
		})
	}
}

// TestDeadEndpoint has a pod in the pool that is not there: a request that is sent to it is served by the next of the list.
func TestDeadEndpoint(t *testing.T) {
	for _, l := range harness.Layouts() {
		t.Run(l.String(), func(t *testing.T) {
			f := harness.NewFleet(t, 1, 1)
			f.WriteEndpoints(t, "127.0.0.1:9")
			f.StartPicker(t)
			f.StartFront(t, l)
			for i := range 12 {
				q := f.TokensCall(harness.Threshold/2+i%2*2*harness.Threshold, i%4 < 2)
				harness.MustMatch(t, f.Send(t, q), q.Stream, f.Want(t, q))
			}
			f.MustRest(t)
		})
	}
}

// TestStoppedEngine ends a decode engine under whole answers, which it answers with 500 as it goes: each is computed by the
// other pod, and no client learns of it.
func TestStoppedEngine(t *testing.T) {
	for _, l := range harness.Layouts() {
		t.Run(l.String(), func(t *testing.T) {
			f := harness.NewFleet(t, 1, 1)
			ending := harness.Start(t, stack.Sim(harness.BinDir, "ending", "--role=decode"))
			addr := ending.Addr("http")
			f.Decode = append(f.Decode, harness.DecodePod{Engine: harness.Engine{Addr: addr}, Sidecar: harness.StartSidecar(t, addr)})
			f.WriteEndpoints(t)
			f.StartPicker(t)
			f.StartFront(t, l)
			var calls []harness.Call
			for i := range 12 {
				q := f.TokensCall(harness.Threshold/2+i%3*harness.Threshold, false)
				q.Tokens = 300 // 600 ms
				calls = append(calls, q)
			}
			want := f.Wants(t, calls)
			var asked []<-chan harness.Reply
			for _, c := range calls {
				asked = append(asked, harness.Begin(t, c, f.Front.Addr, f.Model))
			}
			f.Eventually(t, "answers under way", func() (string, bool) {
				n, err := harness.Engine{Addr: addr}.ReadMetric("vllm:num_requests_running")
				return fmt.Sprint(n, err), n >= 3
			})
			if err := ending.Stop(); err != nil {
				t.Fatal(err)
			}
			for i, got := range asked {
				harness.MustMatch(t, <-got, false, want[i])
			}
		})
	}
}

// TestHungEngine stops engines by SIGSTOP: they keep connections open, and answer nothing. Requests are answered by others, those on
// their way too, within seconds, and the engines serve again when they go on.
func TestHungEngine(t *testing.T) {
	for _, l := range harness.Layouts() {
		t.Run(l.String(), func(t *testing.T) {
			f := harness.NewStack(t, l, 2, 2)
			calls := func() (all []harness.Call) {
				for i := range 12 {
					all = append(all, f.TokensCall(harness.Threshold/2+i%3*2*harness.Threshold, i%2 == 0))
				}
				return all
			}
			f.MustServe(t, calls()) // so that the sidecars know how long engines take
			for _, engine := range []harness.Engine{f.Prefill[0], f.Decode[0].Engine} {
				engine.Pause(t)
				began := time.Now()
				f.MustServe(t, calls())
				if took := time.Since(began); took > 15*time.Second { // the sidecar's own time-outs are 30 s and 60 s
					t.Errorf("12 requests took %v", took)
				}
				engine.Resume(t)
			}
			f.MustServe(t, calls())
			// A prefill engine that goes on may compute a leg before it notices that the sidecar has left: nothing has the answer then, and the
			// lease frees the blocks.
			stopped := &f.Prefill[0]
			f.Eventually(t, "blocks held by the prefill engine that was stopped", func() (string, bool) {
				used := stopped.Metric(t, harness.UsageGauge)
				return fmt.Sprint(used), used == 0
			})
			stopped.Expired = stopped.Metric(t, harness.Expiries)
			f.MustRest(t)
		})
	}
}

// TestEmptyPool has no endpoint at all, and later one.
func TestEmptyPool(t *testing.T) {
	for _, l := range []harness.Layout{{Proxy: "gateway", Mode: "pair"}, {Proxy: "envoy", Mode: "pair"}} {
		t.Run(l.String(), func(t *testing.T) {
			f := harness.NewFleet(t, 0, 1)
			pods := f.Decode
			f.Decode = nil
			harness.Replace(t, f.Endpoints, "endpoints: []\n")
			f.StartPicker(t)
			f.StartFront(t, l)
			got := f.Send(t, f.TokensCall(harness.Threshold/2, false))
			if got.Status != http.StatusServiceUnavailable || harness.Planned(got) != "refused;reason=no-endpoint" {
				t.Errorf("status %d, decision %v", got.Status, got.Decision)
			}
			mustBeOverloaded(t, got, "no-endpoint")
			f.Decode = pods
			f.WriteEndpoints(t)
			q := f.TokensCall(harness.Threshold/2, false)
			want := f.Want(t, q)
			f.Eventually(t, "the answer", func() (string, bool) {
				got := f.Send(t, q)
				return fmt.Sprint(got.Status, got.Body), got.Status == http.StatusOK && fmt.Sprint(got.Tokens) == fmt.Sprint(want)
			})
			f.MustRest(t)
		})
	}
}

// TestReload changes the configuration under a running picker: a good one counts at once, a bad one changes nothing and is
// told.
func TestReload(t *testing.T) {
	f := harness.NewStack(t, harness.Layout{Proxy: "gateway", Mode: "pair"}, 1, 1)
	p := f.Pickers[0]
	q := f.TokensCall(2*harness.Threshold, false)
	if got := f.Send(t, q); got.Decision.Verdict != pd.Remote {
		t.Fatalf("decision %v", got.Decision)
	}
	f.WriteConfig(t, fmt.Sprintf(harness.PdConfig, 100*harness.Threshold, ""))
	f.Eventually(t, "the decision", func() (string, bool) {
		got := f.Send(t, f.TokensCall(2*harness.Threshold, false))
		return got.Decision.String(), harness.Planned(got) == "local;reason=short-prompt"
	})
	f.WriteConfig(t, fmt.Sprintf(harness.PdConfig, -5, ""))
	f.Eventually(t, "/readyz", func() (string, bool) {
		status, text := harness.FetchPage(t, "http://"+p.Addr("metrics")+"/readyz")
		if status != http.StatusOK {
			t.Fatalf("a bad file made it not ready: %d %s", status, text)
		}
		return text, strings.Contains(text, "nonCachedTokens")
	})
	if _, metrics := harness.FetchPage(t, "http://"+p.Addr("metrics")+"/metrics"); !strings.Contains(metrics, `tandem_config_reloads_total{result="invalid"} 1`) {
		t.Errorf("no metric tells of the bad file")
	}
	if got := f.Send(t, f.TokensCall(2*harness.Threshold, false)); harness.Planned(got) != "local;reason=short-prompt" {
		t.Errorf("decision %v: the last good configuration is not kept", got.Decision)
	}
	f.MustRest(t)
}

// TestExplain asks as an operator does.
func TestExplain(t *testing.T) {
	f := harness.NewFleet(t, 1, 2)
	p := f.StartPicker(t)
	body := string(f.TokensCall(2*harness.Threshold, false).Body(f.Model))
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"remote", nil, []string{"decision  remote, because: uncached", "prefix-based-pd-decider: 128 of 128", "nonCachedTokens 64",
			f.Prefill[0].Addr, f.Decode[0].Addr(), "decode-filter", "token-load-scorer"}},
		{"bypass", []string{"--header=x-tandem-pd: bypass"}, []string{"decision  local, because: bypassed", "decider   was not called"}},
		{"refused", []string{"--header=x-tandem-pd: perhaps"}, []string{"decision  refused, because: bad-pd-header", "status 400"}},
		{"nowhere", []string{"--header=x-gateway-destination-endpoint-subset: 10.0.0.1:1"}, []string{"refused, because: no-endpoint", "outside"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := harness.OutputOf(body, "tandem", append([]string{"explain", "--admin=" + p.Addr("admin"), "--path=/v1/completions"}, append(c.args, "-")...)...)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range c.want {
				if !strings.Contains(out, want) {
					t.Errorf("%q is not in:\n%s", want, out)
				}
			}
		})
	}
	state, err := harness.EndpointsOf(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range state.Endpoints {
		if e.Requests != 0 {
			t.Errorf("explaining reserved something at %s", e.Name)
		}
	}
}
