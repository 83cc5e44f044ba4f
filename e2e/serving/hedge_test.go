package serving

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/stack"
)

// TestHedging has prefill pods that the picker names first become slow, once the sidecar knows how long their legs take.
func TestHedging(t *testing.T) {
	t.Run("on", func(t *testing.T) {
		f := newSlowFleet(t, "--hedge-ratio=0.02")
		harness.BothForms(t, func(t *testing.T, stream bool) {
			t.Run("slow to begin", func(t *testing.T) { f.mustHedge(t, slowToBegin, stream) })
			t.Run("slow to answer", func(t *testing.T) { f.mustHedge(t, slowToAnswer, stream) })
		})
		t.Run("many at once", f.mustHedgeFew)
		f.MustRest(t)
	})
	t.Run("off", func(t *testing.T) {
		f := newSlowFleet(t)
		f.mustNotHedge(t)
		f.MustRest(t)
	})
}

// slowFleet is a fleet of two prefill pods and a decode pod. The test relays the legs to the prefill pods, and can hold a request's first one.
type slowFleet struct {
	*harness.Fleet
	engines [2]harness.Program // of the prefill pods
	decode  harness.Program    // the engine of the decode pod
	sidecar harness.Program    // of the decode pod

	mu      sync.Mutex // guards the fields below
	holds   map[string]*hold
	legs    map[string][]prefillLeg // by request id, in the order in which they came
	longest time.Duration           // leg that was not held
}

// slowness is when a pod that is slow stops.
type slowness int

const (
	slowToBegin  slowness = iota // before the engine gets the prompt
	slowToAnswer                 // when the engine has computed it
)

// hold is what stops the first leg of a request.
type hold struct {
	at   slowness
	held chan struct{} // closed when the leg has stopped
	left chan struct{} // closed when the sidecar has ended the leg since then
	over chan struct{} // closed when the leg goes on
	goOn func()
}

// prefillLeg is a leg as a prefill pod got it.
type prefillLeg struct {
	pod  int
	body []byte
}

// newSlowFleet starts a fleet, with flags of the sidecar.
func newSlowFleet(t *testing.T, flags ...string) *slowFleet {
	t.Helper()
	f := &slowFleet{Fleet: harness.NewFleet(t, 0, 0), holds: map[string]*hold{}, legs: map[string][]prefillLeg{}}
	for i := range f.engines {
		f.engines[i] = harness.Start(t, stack.Sim(harness.BinDir, fmt.Sprintf("prefill-%d", i), "--role=prefill"))
		f.Prefill = append(f.Prefill, harness.Engine{Addr: f.relay(t, i)})
	}
	f.decode = harness.Start(t, stack.Sim(harness.BinDir, "decode-0", "--role=decode"))
	// With a longer time-out than the test waits, a leg that is held ends only because the sidecar does not need it any more.
	f.sidecar = harness.StartSidecar(t, f.decode.Addr("http"), append(flags, "--prefill-timeout=10m")...)
	f.Decode = append(f.Decode, harness.DecodePod{Engine: harness.Engine{Addr: f.decode.Addr("http")}, Sidecar: f.sidecar})
	f.WriteEndpoints(t)
	f.StartPicker(t)
	f.StartFront(t, harness.Layout{Proxy: "envoy", Mode: "pair"})
	return f
}

// relay serves a prefill pod at the address that it returns.
func (f *slowFleet) relay(t *testing.T, pod int) string {
	t.Helper()
	engine := f.engines[pod].Addr("http")
	pages := &httputil.ReverseProxy{
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "http", Host: engine}) },
		Transport:    harness.Client.Transport,
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			pages.ServeHTTP(w, r)
		} else if err := f.relayLeg(w, r, pod, engine); err != nil {
			panic(http.ErrAbortHandler) // as an engine does whose client has left
		}
	}))
	t.Cleanup(func() { f.allGoOn(); server.Close() })
	return server.Listener.Addr().String()
}

// relayLeg passes a leg to an engine, and its answer back, also to a sidecar that has ended the leg meanwhile: it was on its way. It fails if
// the sidecar has ended the leg before the engine got it.
func (f *slowFleet) relayLeg(w http.ResponseWriter, r *http.Request, pod int, engine string) error {
	began := time.Now()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	held := f.arrives(r.Header.Get(pd.HeaderRequestID), prefillLeg{pod, body})
	if held != nil && held.at == slowToBegin {
		if err := held.wait(r.Context()); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(context.WithoutCancel(r.Context()), http.MethodPost, "http://"+engine+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = r.Header.Clone()
	resp, err := harness.Client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	switch {
	case held == nil:
		f.mu.Lock()
		f.longest = max(f.longest, time.Since(began))
		f.mu.Unlock()
	case held.at == slowToAnswer:
		_ = held.wait(r.Context())
	}
	w.Header().Set("Content-Type", resp.Header.Get("Content-Type"))
	w.WriteHeader(resp.StatusCode)
	_, err = w.Write(answer)
	return err
}

// arrives notes a leg, and returns what is to stop it; nil: nothing.
func (f *slowFleet) arrives(id string, leg prefillLeg) *hold {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.legs[id] = append(f.legs[id], leg)
	if len(f.legs[id]) > 1 {
		return nil
	}
	return f.holds[id]
}

// wait returns when the leg may go on, or with an error when the sidecar has ended it.
func (h *hold) wait(leg context.Context) error {
	close(h.held)
	select {
	case <-h.over:
		return nil
	case <-leg.Done():
		close(h.left)
		return leg.Err()
	}
}

// allGoOn ends all holds.
func (f *slowFleet) allGoOn() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.holds {
		h.goOn()
	}
}

// slowCall returns a call with an id of its own whose first prefill leg is slow.
func (f *slowFleet) slowCall(at slowness, stream bool) (q harness.Call, id string, h *hold) {
	q = f.TokensCall(2*harness.Threshold, stream)
	id = "slow-" + strconv.Itoa(harness.PromptSeed)
	q.Header = map[string]string{pd.HeaderRequestID: id}
	h = &hold{at: at, held: make(chan struct{}), left: make(chan struct{}), over: make(chan struct{})}
	h.goOn = sync.OnceFunc(func() { close(h.over) })
	f.mu.Lock()
	defer f.mu.Unlock()
	f.holds[id] = h
	return q, id, h
}

// serve sends some requests at once, none of which is held.
func (f *slowFleet) serve(t *testing.T) {
	t.Helper()
	var calls []harness.Call
	for i := range 8 {
		calls = append(calls, f.TokensCall(2*harness.Threshold, i%2 == 0))
	}
	f.MustServe(t, calls)
}

// legsOf returns the legs that pods have got for a request.
func (f *slowFleet) legsOf(id string) []prefillLeg {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.legs[id])
}

// counts returns how many requests had prefill legs, of how many the pods got a second one, and of how many each pod got the only one. A second
// leg that is overtaken at once may get to no pod.
func (f *slowFleet) counts() (requests, second int, only [2]int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, legs := range f.legs {
		if len(legs) == 1 {
			only[legs[0].pod]++
		} else {
			second++
		}
	}
	return len(f.legs), second, only
}

// learn sends requests until the sidecar knows how long legs to both pods take: that takes 20 legs.
func (f *slowFleet) learn(t *testing.T) {
	t.Helper()
	for {
		requests, _, only := f.counts()
		if min(only[0], only[1]) >= 20 {
			return
		}
		if requests > 1000 {
			t.Fatalf("the picker names one prefill pod first: of %d requests the pods had %v", requests, only)
		}
		f.serve(t)
	}
}

// earn sends requests until so many second legs are within the share of requests that may have one, which is one in fifty.
func (f *slowFleet) earn(t *testing.T, legs int) {
	t.Helper()
	for {
		requests, _, _ := f.counts()
		sent := f.late(t).sent()
		if requests/50-sent >= legs {
			return
		}
		if requests > 1000 {
			t.Fatalf("%d of %d requests had a second leg", sent, requests)
		}
		f.serve(t)
	}
}

// lateLegs is how many late legs the sidecar counts, by what came of the second one.
type lateLegs map[string]int

// sent returns how many second legs the sidecar has sent.
func (l lateLegs) sent() int { return l["won"] + l["lost"] + l["failed"] }

// late returns what the sidecar counts.
func (f *slowFleet) late(t *testing.T) lateLegs {
	t.Helper()
	_, page := harness.FetchPage(t, "http://"+f.sidecar.Addr("metrics")+"/metrics")
	by := lateLegs{}
	for line := range strings.Lines(page) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		label, ok := strings.CutPrefix(series, "tandem_hedges_total{")
		if !ok {
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			t.Fatal(err)
		}
		by[harness.LabelPair.FindStringSubmatch(label)[2]] = n
	}
	return by
}

// states returns those of the prefill engines.
func (f *slowFleet) states(t *testing.T) (all [2]sim.State) {
	t.Helper()
	for i, e := range f.engines {
		all[i] = harness.StateOf(t, e)
	}
	return all
}

// mustHedge sends a request whose first prefill leg does not end by itself. The other pod computes the prompt, the first leg ends before the
// answer comes, and nothing is left of it.
func (f *slowFleet) mustHedge(t *testing.T, at slowness, stream bool) {
	f.learn(t)
	f.earn(t, 1)
	f.mustFree(t)
	before, states := f.late(t), f.states(t)
	q, id, h := f.slowCall(at, stream)
	want := f.Want(t, q)
	f.setFaults(t, http.MethodPost, fmt.Sprintf(`{"leg":"decode","fault":"slow","arg":"stop","at":"headers","match":%q}`, id))
	answer := harness.Begin(t, q, f.Front.Addr, f.Model)
	select {
	case <-h.left:
	case <-harness.Within(t).Done():
		t.Fatal("the sidecar does not end the first leg while decode generates")
	}
	f.setFaults(t, http.MethodDelete, "")
	got := <-answer
	harness.MustMatch(t, got, stream, want)

	legs := f.legsOf(id)
	if len(legs) != 2 || legs[0].pod == legs[1].pod {
		t.Fatalf("the prompt went to the pods %v, want one after the other", podsOf(legs))
	}
	for _, leg := range legs {
		mustPrefill(t, leg, q.Prompt)
	}
	const decision = "remote;reason=uncached;attempts=2;candidate=1"
	if got.Decision.String() != decision {
		t.Errorf("decision %v, want %s", got.Decision, decision)
	}
	before["won"]++
	if now := f.late(t); fmt.Sprint(now) != fmt.Sprint(before) {
		t.Errorf("late legs %v, want %v", now, before)
	}

	f.mustRelease(t, states, legs, at)
	f.mustTell(t, id, decision, legs, at)
	if all := f.legsOf(id); len(all) != 2 {
		t.Errorf("after the answer the prompt went to the pods %v", podsOf(all[2:]))
	}
}

// setFaults sets a fault of the decode engine, or ends all.
func (f *slowFleet) setFaults(t *testing.T, method, fault string) {
	t.Helper()
	req, err := http.NewRequestWithContext(harness.Within(t), method, "http://"+f.decode.Addr("admin")+"/sim/faults", strings.NewReader(fault))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := harness.Client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		t.Fatalf("%s of fault %s: %s", method, fault, resp.Status)
	}
}

// podsOf returns the pods that got legs.
func podsOf(legs []prefillLeg) (pods []int) {
	for _, leg := range legs {
		pods = append(pods, leg.pod)
	}
	return pods
}

// mustPrefill fails unless a leg has a pod compute a prompt for another one.
func mustPrefill(t *testing.T, leg prefillLeg, prompt []int) {
	t.Helper()
	var got struct {
		Prompt []int
		Params struct {
			Remote bool `json:"do_remote_decode"`
		} `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(leg.body, &got); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got.Prompt, prompt) || !got.Params.Remote {
		t.Errorf("pod %d got %s", leg.pod, leg.body)
	}
}

// mustFree fails unless the prefill engines come to hold no blocks.
func (f *slowFleet) mustFree(t *testing.T) {
	t.Helper()
	f.Eventually(t, "blocks of the prefill engines", func() (string, bool) {
		now := f.states(t)
		return fmt.Sprintf("%+v", now), now[0].Blocks.Used == 0 && now[1].Blocks.Used == 0
	})
}

// mustRelease fails unless the prefill engines free all blocks: those of the second leg because decode has read them, and those of the first
// one, if it came to have any, because they were released. The lease ends for none of them.
func (f *slowFleet) mustRelease(t *testing.T, before [2]sim.State, legs []prefillLeg, at slowness) {
	t.Helper()
	f.mustFree(t)
	var want [2]int64
	want[legs[1].pod] = 1
	if at == slowToAnswer {
		want[legs[0].pod] = 1
	}
	for i, now := range f.states(t) {
		was := before[i]
		if n := now.Released - was.Released; n != want[i] || now.Expired != was.Expired || now.StaleReads != was.StaleReads {
			t.Errorf("pod %d has released %d hand-offs, want %d: %+v, before %+v", i, n, want[i], now, was)
		}
	}
	if n := harness.Sample(t, f.sidecar.Addr("metrics"), "tandem_kv_stranded_total"); n != 0 {
		t.Errorf("%v hand-offs are counted as stranded", n)
	}
}

// mustTell fails unless the sidecar's log and tandem why tell of both legs.
func (f *slowFleet) mustTell(t *testing.T, id, decision string, legs []prefillLeg, at slowness) {
	t.Helper()
	first, second := f.Prefill[legs[0].pod].Addr, f.Prefill[legs[1].pod].Addr
	f.Eventually(t, "log of "+id, func() (string, bool) {
		lines := slices.DeleteFunc(f.sidecar.Output(), func(line string) bool {
			return !strings.Contains(line, `msg="request served" request_id=`+id)
		})
		return strings.Join(lines, "\n"), len(lines) == 1 && strings.Contains(lines[0], decision) && strings.Contains(lines[0], "prefill="+second)
	})
	told := []string{
		fmt.Sprintf("prefill  prefill-%d %s, then prefill-%d %s", legs[0].pod, first, legs[1].pod, second),
		fmt.Sprintf("prefill-%d computed the prompt", legs[1].pod),
		decision,
		"prefill leg to " + first + ": no answer",
		"ended, because another prefill pod was faster",
		"prefill leg to " + second + ": status 200",
	}
	if at == slowToAnswer {
		told = append(told, "release of the KV cache on the prefill pod (cancel): ok")
	}
	f.Eventually(t, "tandem why "+id, func() (string, bool) {
		out, err := harness.Output("tandem", "why", "--epp-admin="+f.Pickers[0].Addr("admin"), "--sidecar-admin="+f.sidecar.Addr("admin"), id)
		if err != nil {
			return err.Error(), false
		}
		missing := slices.DeleteFunc(slices.Clone(told), func(text string) bool { return strings.Contains(out, text) })
		return fmt.Sprintf("without %q:\n%s", missing, out), len(missing) == 0
	})
}

// mustHedgeFew has many requests be late at once. Of these as many get a second leg as earlier requests have earned, and the others wait until
// their pods go on. So no more than one request in fifty has had a second leg since the sidecar started. On a busy machine the second leg of a
// request may come first, and be the one that is held.
func (f *slowFleet) mustHedgeFew(t *testing.T) {
	const many, earned = 40, 3
	f.learn(t)
	f.earn(t, earned)
	before := f.late(t)
	var calls []harness.Call
	var ids []string
	for i := range many {
		q, id, _ := f.slowCall(slowToBegin, i%2 == 0)
		calls, ids = append(calls, q), append(ids, id)
	}
	want := f.Wants(t, calls)
	var asked []<-chan harness.Reply
	for _, q := range calls {
		asked = append(asked, harness.Begin(t, q, f.Front.Addr, f.Model))
	}
	f.Eventually(t, "late legs", func() (string, bool) {
		now := f.late(t)
		return fmt.Sprint(now), now.sent()+now["budget"] == before.sent()+before["budget"]+many
	})
	f.allGoOn()
	second := 0
	for i, got := range asked {
		r := <-got
		harness.MustMatch(t, r, calls[i].Stream, want[i])
		if legs := f.legsOf(ids[i]); len(legs) > 1 {
			second++
		}
	}
	now := f.late(t)
	if second != earned || now.sent() != before.sent()+earned {
		t.Errorf("%d of %d requests had a second leg, want %d: late legs %v, before %v", second, many, earned, now, before)
	}
	requests, came, _ := f.counts()
	if sent := now.sent(); sent > requests/50 || came > sent {
		t.Errorf("%d of %d requests had a second leg, and pods got that of %d", sent, requests, came)
	} else {
		t.Logf("%d of %d requests had a second leg", sent, requests)
	}
}

// mustNotHedge sends a request whose first prefill leg stops for much longer than others take. It waits.
func (f *slowFleet) mustNotHedge(t *testing.T) {
	f.learn(t)
	f.earn(t, 1)
	q, id, h := f.slowCall(slowToBegin, false)
	want := f.Want(t, q)
	got := harness.Begin(t, q, f.Front.Addr, f.Model)
	<-h.held
	// A second leg would be sent after four times as long as most legs take, or after 40 ms.
	for held := time.Now(); time.Since(held) < 8*max(f.longestLeg(), 10*time.Millisecond); {
		f.serve(t)
	}
	if legs := f.legsOf(id); len(legs) != 1 {
		t.Errorf("the prompt went to the pods %v", podsOf(legs))
	}
	h.goOn()
	r := <-got
	harness.MustMatch(t, r, false, want)
	if d := r.Decision.String(); d != "remote;reason=uncached;attempts=1;candidate=0" {
		t.Errorf("decision %s", d)
	}
	if late := f.late(t); len(late) != 0 {
		t.Errorf("late legs are counted: %v", late)
	}
	if _, second, _ := f.counts(); second != 0 {
		t.Errorf("%d requests had a second leg", second)
	}
}

// longestLeg returns how long the longest leg has taken that was not held.
func (f *slowFleet) longestLeg() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.longest
}
