package e2e

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tandem-serving/tandem/e2e/answer"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/stack"
)

// TestPickerKilled ends the picker by SIGKILL while answers stream: with the filter pair no answer is cut, and the next
// request gets a JSON error that says when to come back.
func TestPickerKilled(t *testing.T) {
	for _, l := range []layout{{"gateway", "pair"}, {"envoy", "pair"}} {
		t.Run(l.String(), func(t *testing.T) {
			f := newStack(t, l, 1, 1)
			const streams = 6
			begun := make(chan struct{}, streams)
			killed := make(chan struct{})
			var running sync.WaitGroup
			var all []call
			for i := range streams {
				q := f.tokensCall(threshold/2+i%2*2*threshold, true)
				q.tokens = 400
				all = append(all, q)
			}
			want := f.wants(t, all)
			for i, q := range all {
				running.Go(func() {
					got, err := f.readSlowly(t, q, begun, killed)
					if err != nil {
						t.Errorf("stream %d was cut: %v", i, err)
						return
					}
					mustMatch(t, got, true, want[i])
				})
			}
			for range streams {
				<-begun
			}
			if err := f.pickers[0].Kill(); err != nil {
				t.Fatal(err)
			}
			close(killed)
			running.Wait()
			got := f.send(t, f.tokensCall(threshold/2, false))
			if got.Status != http.StatusServiceUnavailable || got.Header.Get("Retry-After") == "" || !strings.Contains(got.Body, `"error"`) {
				t.Errorf("without a picker: %d %v %s", got.Status, got.Header, got.Body)
			}
			f.mustRest(t)
		})
	}
}

// readSlowly reads the first event of a stream, tells so, and goes on when it may.
func (f *fleet) readSlowly(t *testing.T, q call, begun chan<- struct{}, goOn <-chan struct{}) (reply, error) {
	resp, err := f.open(t.Context(), q)
	if err != nil {
		begun <- struct{}{}
		return reply{}, err
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
	for _, l := range []layout{{"gateway", "pair"}, {"envoy", "pair"}, {"envoy", "single"}} {
		t.Run(l.String(), func(t *testing.T) {
			f := newFleet(t, 1, 2)
			f.startPicker(t)
			f.startPicker(t)
			f.startFront(t, l)
			testFleetCrowd(t, f)
			f.mustRest(t)
			if err := f.pickers[1].Kill(); err != nil {
				t.Fatal(err)
			}
			if l.proxy == "gateway" { // unlike Envoy it tries no stream again: what comes before it has noticed the death fails
				f.eventually(t, "the gateway keeps to the picker that lives", func() (string, bool) {
					got := f.send(t, f.tokensCall(threshold/2, false))
					return got.Body, got.Status == http.StatusOK
				})
			}
			var after []call
			for i := range 20 {
				after = append(after, f.tokensCall(threshold/2, i%2 == 0))
			}
			f.mustServe(t, after)
			f.mustRest(t)
		})
	}
}

// TestPoolChanges rewrites the endpoints file while requests run: pods come and go, and no request fails.
func TestPoolChanges(t *testing.T) {
	for _, l := range []layout{{"gateway", "pair"}, {"envoy", "pair"}, {"envoy", "single"}} {
		t.Run(l.String(), func(t *testing.T) {
			f := newStack(t, l, 1, 2)
			all := f.decode
			var done atomic.Bool
			var running sync.WaitGroup
			for range 4 {
				running.Go(func() {
					for !done.Load() {
						q := call{api: pd.APICompletions, text: "load", tokens: 4}
						got, err := q.send(t.Context(), f.front.addr, f.model)
						if err != nil || got.Status != http.StatusOK {
							t.Errorf("while the pool changed: %d %v %s", got.Status, err, got.Body)
							return
						}
					}
				})
			}
			for _, pods := range [][]decodePod{all[:1], all, all[1:], all} {
				f.decode = pods
				f.writeEndpoints(t)
				f.eventually(t, "decode endpoints", func() (string, bool) {
					state, err := endpointsOf(f.pickers[0])
					if err != nil {
						return err.Error(), false
					}
					return fmt.Sprint(len(state.Endpoints)), len(state.Endpoints) == len(pods)+1
				})
				var calls []call
				for range 10 {
					calls = append(calls, f.tokensCall(threshold/2, false))
				}
				f.mustServe(t, calls) // and the pods that are there are the ones that serve
			}
			done.Store(true)
			running.Wait()
			f.mustRest(t)
		})
	}
}

// TestDeadEndpoint has a pod in the pool that is not there: whoever is sent to it is served by the next of the list.
func TestDeadEndpoint(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.String(), func(t *testing.T) {
			f := newFleet(t, 1, 1)
			f.writeEndpoints(t, "127.0.0.1:9")
			f.startPicker(t)
			f.startFront(t, l)
			for i := range 12 {
				q := f.tokensCall(threshold/2+i%2*2*threshold, i%4 < 2)
				mustMatch(t, f.send(t, q), q.stream, f.want(t, q))
			}
			f.mustRest(t)
		})
	}
}

// TestStoppedEngine ends a decode engine under whole answers, which it answers with 500 as it goes: each is computed by the
// other pod, and no client learns of it.
func TestStoppedEngine(t *testing.T) {
	for _, l := range layouts {
		t.Run(l.String(), func(t *testing.T) {
			f := newFleet(t, 1, 1)
			ending := start(t, stack.Sim(binDir, "ending", "--role=decode"))
			addr := ending.addr("http")
			f.decode = append(f.decode, decodePod{engine{addr: addr}, startSidecar(t, addr)})
			f.writeEndpoints(t)
			f.startPicker(t)
			f.startFront(t, l)
			var calls []call
			for i := range 12 {
				q := f.tokensCall(threshold/2+i%3*threshold, false)
				q.tokens = 300 // 600 ms
				calls = append(calls, q)
			}
			want := f.wants(t, calls)
			var asked []<-chan reply
			for _, c := range calls {
				asked = append(asked, begin(t, c, f.front.addr, f.model))
			}
			f.eventually(t, "answers under way", func() (string, bool) {
				n, err := engine{addr: addr}.readMetric("vllm:num_requests_running")
				return fmt.Sprint(n, err), n >= 3
			})
			if err := ending.Stop(); err != nil {
				t.Fatal(err)
			}
			for i, got := range asked {
				mustMatch(t, <-got, false, want[i])
			}
		})
	}
}

// TestEmptyPool has no endpoint at all, and later one.
func TestEmptyPool(t *testing.T) {
	for _, l := range []layout{{"gateway", "pair"}, {"envoy", "pair"}} {
		t.Run(l.String(), func(t *testing.T) {
			f := newFleet(t, 0, 1)
			pods := f.decode
			f.decode = nil
			replace(t, f.endpoints, "endpoints: []\n")
			f.startPicker(t)
			f.startFront(t, l)
			got := f.send(t, f.tokensCall(threshold/2, false))
			if got.Status != http.StatusServiceUnavailable || planned(got) != "refused;reason=no-endpoint" {
				t.Errorf("status %d, decision %v", got.Status, got.Decision)
			}
			mustBeOverloaded(t, got, "no-endpoint")
			f.decode = pods
			f.writeEndpoints(t)
			q := f.tokensCall(threshold/2, false)
			want := f.want(t, q)
			f.eventually(t, "the answer", func() (string, bool) {
				got := f.send(t, q)
				return fmt.Sprint(got.Status, got.Body), got.Status == http.StatusOK && fmt.Sprint(got.Tokens) == fmt.Sprint(want)
			})
			f.mustRest(t)
		})
	}
}

// TestReload changes the configuration under a running picker: a good one counts at once, a bad one changes nothing and is
// told.
func TestReload(t *testing.T) {
	f := newStack(t, layout{"gateway", "pair"}, 1, 1)
	p := f.pickers[0]
	q := f.tokensCall(2*threshold, false)
	if got := f.send(t, q); got.Decision.Verdict != pd.Remote {
		t.Fatalf("decision %v", got.Decision)
	}
	f.writeConfig(t, fmt.Sprintf(pdConfig, 100*threshold, ""))
	f.eventually(t, "the decision", func() (string, bool) {
		got := f.send(t, f.tokensCall(2*threshold, false))
		return got.Decision.String(), planned(got) == "local;reason=short-prompt"
	})
	f.writeConfig(t, fmt.Sprintf(pdConfig, -5, ""))
	f.eventually(t, "/readyz", func() (string, bool) {
		status, text := page(t, "http://"+p.addr("metrics")+"/readyz")
		if status != http.StatusOK {
			t.Fatalf("a bad file made it not ready: %d %s", status, text)
		}
		return text, strings.Contains(text, "nonCachedTokens")
	})
	if _, metrics := page(t, "http://"+p.addr("metrics")+"/metrics"); !strings.Contains(metrics, `tandem_config_reloads_total{result="invalid"} 1`) {
		t.Errorf("no metric tells of the bad file")
	}
	if got := f.send(t, f.tokensCall(2*threshold, false)); planned(got) != "local;reason=short-prompt" {
		t.Errorf("decision %v: the last good configuration is not kept", got.Decision)
	}
	f.mustRest(t)
}

// TestExplain asks as an operator does.
func TestExplain(t *testing.T) {
	f := newFleet(t, 1, 2)
	p := f.startPicker(t)
	body := string(f.tokensCall(2*threshold, false).body(f.model))
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"remote", nil, []string{"decision  remote, because: uncached", "prefix-based-pd-decider: 128 of 128", "nonCachedTokens 64",
			f.prefill[0].addr, f.decode[0].addr(), "decode-filter", "token-load-scorer"}},
		{"bypass", []string{"--header=x-tandem-pd: bypass"}, []string{"decision  local, because: bypassed", "decider   was not asked"}},
		{"refused", []string{"--header=x-tandem-pd: perhaps"}, []string{"decision  refused, because: bad-pd-header", "status 400"}},
		{"nowhere", []string{"--header=x-gateway-destination-endpoint-subset: 10.0.0.1:1"}, []string{"refused, because: no-endpoint", "outside"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := outputOf(body, "tandem", append([]string{"explain", "--admin=" + p.addr("admin"), "--path=/v1/completions"}, append(c.args, "-")...)...)
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
	state, err := endpointsOf(p)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range state.Endpoints {
		if e.Requests != 0 {
			t.Errorf("explaining reserved something at %s", e.Name)
		}
	}
}
