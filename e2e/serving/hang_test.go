package serving

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// hangs is a pair whose engines are stopped by SIGSTOP, with a sidecar whose streams go on at another decode engine.
type hangs struct {
	*harness.Pair
	sidecar harness.Program
	other   string
}

// testHangs stops each engine of a pair: before it gets a request, and the decode engine during a stream too. What can be computed
// elsewhere is, with the tokens of an undisturbed engine, and stopped engines serve again when they go on. It logs what that costs.
func testHangs(t *testing.T) {
	h := &hangs{Pair: engines.pair(t, engines.failing), other: engines.recomputing.Address()}
	h.sidecar = harness.StartSidecar(t, h.Decode.Addr, "--continue-times=1")
	var normal []time.Duration
	for range 40 { // so that the sidecar knows how long engines take
		normal = append(normal, h.mustServe(t, pd.Remote).first)
	}
	slices.Sort(normal)
	p99 := normal[len(normal)-1]
	t.Logf("first token: p50 %v, p99 %v; twice that and a second: %v", normal[len(normal)/2], p99, 2*p99+time.Second)
	for _, role := range []struct {
		name   string
		engine harness.Engine
		test   func(t *testing.T, pause func())
	}{
		{"prefill", h.Prefill, func(t *testing.T, pause func()) {
			pause()
			t.Logf("first token of the first request %v, of the second %v", h.mustServe(t, pd.Local).first, h.mustServe(t, pd.Local).first)
		}},
		{"prefill, between the legs", h.Prefill, func(t *testing.T, pause func()) {
			gate := harness.NewGate(t, h.Decode.Addr, harness.Requests)
			sidecar := harness.StartSidecar(t, gate.Addr)
			for range 16 { // so that it knows how long decode takes to read
				harness.MustSend(t, h.Ask(pd.APICompletions, 70, true).Remote(h.Prefill.Addr), sidecar.Addr("http"), h.Model)
			}
			call := h.Ask(pd.APICompletions, 70, true)
			want := h.Want(t, call)
			gate.Shut()
			got := harness.Begin(t, call.Remote(h.Prefill.Addr), sidecar.Addr("http"), h.Model)
			<-gate.Held
			pause()
			began := time.Now()
			gate.Release()
			r := <-got
			t.Logf("answered %v after decode was to read from it", time.Since(began).Round(time.Millisecond))
			harness.MustMatch(t, r, true, want)
			if r.Decision.Verdict != pd.Local || r.Decision.Reason != pd.TransferFailed {
				t.Errorf("decision %v", r.Decision)
			}
		}},
		{"decode", h.Decode, func(t *testing.T, pause func()) {
			call := h.Ask(pd.APICompletions, 70, true)
			want := h.Want(t, call)
			pause()
			began := time.Now()
			first := harness.MustSend(t, h.to(call), h.sidecar.Addr("http"), h.Model)
			harness.MustMatch(t, first, true, want)
			if moved := first.Header.Get(pd.HeaderContinued); moved != "1" {
				t.Errorf("moved %q times", moved)
			}
			t.Logf("answered by another engine within %v", time.Since(began).Round(time.Millisecond))
			second := harness.MustSend(t, h.to(call), h.sidecar.Addr("http"), h.Model)
			if second.Status != http.StatusServiceUnavailable || second.Header.Get(pd.HeaderRetry) != "1" {
				t.Errorf("%d, retry %q: %s", second.Status, second.Header.Get(pd.HeaderRetry), second.Body)
			}
		}},
		{"decode, during a whole answer", h.Decode, func(t *testing.T, pause func()) {
			call := harness.Call{API: pd.APICompletions, Prompt: h.Fresh(70), Tokens: 1000}
			want := h.Want(t, call)
			got := harness.Begin(t, h.to(call), h.sidecar.Addr("http"), h.Model)
			mustGenerate(t, h.Decode)
			pause()
			began := time.Now()
			mustBeAskedAnew(t, <-got, want)
			t.Logf("answered by another engine within %v, which took %v alone", time.Since(began).Round(time.Millisecond), h.alone(t, call))
		}},
		{"decode, during a stream", h.Decode, func(t *testing.T, pause func()) {
			got := h.timed(t, h.body(1000), pause)
			if got.moved != "1" {
				t.Errorf("moved %q times", got.moved)
			}
			t.Logf("longest pause of the stream %v", got.pause)
		}},
	} {
		t.Run(role.name, func(t *testing.T) {
			func() {
				paused := false
				defer func() {
					if paused {
						role.engine.Resume(t)
					}
				}()
				role.test(t, func() { role.engine.Pause(t); paused = true })
			}()
			(&harness.Fleet{}).Eventually(t, "the pair", func() (string, bool) {
				got := harness.MustSend(t, h.Ask(pd.APICompletions, 70, false).Remote(h.Prefill.Addr), h.sidecar.Addr("http"), h.Model)
				return fmt.Sprint(got.Status, got.Decision), got.Decision.Verdict == pd.Remote
			})
		})
	}
	h.MustReleaseWithin(t, h.Lease+5*time.Second)
}

// body returns a request for a stream.
func (h *hangs) body(tokens int) string {
	call := harness.Call{API: pd.APICompletions, Prompt: h.Fresh(70), Tokens: tokens, Stream: true}
	return string(withoutIDs(call.Body(h.Model)))
}

// timing is how a client sees a stream.
type timing struct {
	decision     string
	moved        string
	first, pause time.Duration // to the first event, and the longest one between two pieces of the stream
}

// mustServe sends a request whose answer is short, and fails unless it is remote or local as it should.
func (h *hangs) mustServe(t *testing.T, verdict pd.Verdict) timing {
	t.Helper()
	got := h.timed(t, h.body(8), nil)
	if r, err := pd.ParseResult(got.decision); err != nil || r.Verdict != verdict {
		t.Errorf("decision %s, want %v", got.decision, verdict)
	}
	return got
}

// timed sends a request, and fails unless the stream is that of another engine. After its first bytes it calls a function.
func (h *hangs) timed(t *testing.T, body string, begun func()) (got timing) {
	t.Helper()
	want := read(t, streamOf(t, "http://"+h.other, pd.APICompletions, body))
	began := time.Now()
	resp := openStream(t, "http://"+h.sidecar.Addr("http"), pd.APICompletions, body, h.headers()...)
	got.first, got.decision = time.Since(began), resp.Header.Get(pd.HeaderDecision)
	var stream []byte
	piece := make([]byte, 1<<10)
	for last := time.Now(); ; last = time.Now() {
		n, err := resp.Body.Read(piece)
		stream = append(stream, piece[:n]...)
		got.pause = max(got.pause, time.Since(last))
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if begun != nil && len(stream) > 2000 {
			begun()
			begun = nil
		}
	}
	if said := read(t, string(stream)); !said.equals(want) {
		t.Errorf("%+v\nwant\n%+v", said, want)
	}
	got.moved = resp.Trailer.Get(pd.HeaderContinued)
	return got
}

// alone returns how long the other engine takes for a request.
func (h *hangs) alone(t *testing.T, call harness.Call) time.Duration {
	t.Helper()
	began := time.Now()
	harness.MustSend(t, call, h.other, h.Model)
	return time.Since(began).Round(time.Millisecond)
}

// to addresses a request as a picker does.
func (h *hangs) to(call harness.Call) harness.Call {
	call.Header = map[string]string{pd.HeaderDestination: h.Decode.Addr + "," + h.other}
	return call.Remote(h.Prefill.Addr)
}

// headers are what a picker tells the sidecar.
func (h *hangs) headers() []string {
	return []string{pd.HeaderPrefill, h.Prefill.Addr, pd.HeaderDestination, h.Decode.Addr + "," + h.other}
}
