package badclient

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
)

// Limits of the stack that bad clients meet: small, so that few clients reach them.
const (
	badBody = 4 << 20     // largest body
	badHeld = 32 << 20    // all bodies that are held
	badSent = 3 * badHeld // all bodies of TestHeldBodies
	// badPause is how long a body may pause. The time for headers is Envoy's and the sidecar's own.
	badPause = time.Second
)

// badStack is a whole stack, each program of which is looked at from outside.
type badStack struct {
	*harness.Fleet
	sidecar  harness.Program
	watched  []watched
	prefills string // address of the prefill engine
}

// watched is a process, with what it had when it was idle.
type watched struct {
	name    string
	pid     int
	metrics string // of a program in Go; "" = none
	idle    harness.Holdings
	bound   int // how much the resident size may grow (MiB)
}

func newBadStack(t *testing.T) *badStack {
	t.Helper()
	s := &badStack{Fleet: harness.NewFleet(t, 0, 0)}
	s.Prefill = []harness.Engine{harness.StartSim(t, "prefill-0", "--role=prefill")}
	decode := harness.StartSim(t, "decode-0", "--role=decode")
	limits := []string{fmt.Sprint("--body-limit=", badBody), fmt.Sprint("--buffer-limit=", badHeld), "--body-timeout=" + badPause.String()}
	s.sidecar = harness.StartSidecar(t, decode.Addr, append(limits, "--log-level=info")...)
	s.Decode = []harness.DecodePod{{Engine: decode, Sidecar: s.sidecar}}
	s.prefills = s.Prefill[0].Addr
	s.WriteEndpoints(t)
	picker := s.StartPicker(t, limits...)
	bootstrap, err := harness.Output("tandem", "envoy-config", "--listen=127.0.0.1:0", "--admin-address=127.0.0.1:0", "--epp="+picker.Addr("extproc"),
		"--epp-plaintext", "--idle-timeout=1s", fmt.Sprint("--body-limit=", badBody))
	if err != nil {
		t.Fatal(err)
	}
	// The longest wait for headers is shortened: nothing else makes the case wait so long.
	bootstrap = regexp.MustCompile(`request_headers_timeout: \S+`).ReplaceAllString(bootstrap, "request_headers_timeout: "+badPause.String())
	s.Front = harness.StartEnvoy(t, bootstrap)
	for range 20 { // what is kept for the next request is no leak
		s.mustServe(t, s.Front.Addr)
		s.mustServe(t, s.sidecar.Addr("http"))
	}
	// A program in Go has twice what lives, and the bodies that are held live.
	s.watch(t, "sidecar", s.sidecar.PID(), s.sidecar.Addr("metrics"), 3*badHeld>>20)
	s.watch(t, "epp", picker.PID(), picker.Addr("metrics"), 3*badHeld>>20)
	// Envoy refuses no body of TestHeldBodies itself, so it may have all of them three times: as they came, as messages for the picker, and as the
	// bytes of those that wait to be sent.
	s.watch(t, "envoy", s.Front.Pid, "", 3*badSent>>20+32)
	return s
}

// mustServe has an ordinary request answered at a door.
func (s *badStack) mustServe(t *testing.T, door string) {
	t.Helper()
	for _, c := range []harness.Call{
		{API: pd.APICompletions, Prompt: s.Fresh(harness.Threshold / 2), Tokens: 2},
		harness.Call{API: pd.APICompletions, Prompt: s.Fresh(2 * harness.Threshold), Tokens: 2, Stream: true}.Remote(s.prefills),
	} {
		if r := harness.MustSend(t, c, door, s.Model); r.Status != http.StatusOK {
			t.Fatalf("an ordinary request: %d %s", r.Status, r.Body)
		}
	}
}

func (s *badStack) watch(t *testing.T, name string, pid int, metrics string, bound int) {
	t.Helper()
	s.watched = append(s.watched, watched{name, pid, metrics, harness.HoldingsOf(t, pid, metrics), bound})
}

// mustBeUnharmed fails unless every program lives, has grown by no more than its bound, and comes back to what it had.
func (s *badStack) mustBeUnharmed(t *testing.T) {
	t.Helper()
	for _, w := range s.watched {
		peak := harness.PeakOf(t, w.pid)
		t.Logf("%s: %d MiB at rest, %d MiB at most", w.name, w.idle.RSS, peak)
		if peak > w.idle.RSS+w.bound {
			t.Errorf("%s grew from %d to %d MiB, want at most %d MiB more", w.name, w.idle.RSS, peak, w.bound)
		}
		const slack = 16 // connections that are kept for what comes
		s.Eventually(t, w.name+" comes back to rest", func() (string, bool) {
			now := harness.HoldingsOf(t, w.pid, w.metrics)
			return fmt.Sprintf("%v, was %v", now, w.idle),
				now.Descriptors <= w.idle.Descriptors+slack && now.Goroutines <= w.idle.Goroutines+4*slack
		})
	}
	s.mustServe(t, s.Front.Addr)
	s.mustServe(t, s.sidecar.Addr("http"))
}

// neighbours are well-behaved clients of a door.
type neighbours struct {
	stop   context.CancelFunc
	done   sync.WaitGroup
	mu     sync.Mutex // guards the fields below
	took   []time.Duration
	failed []string
}

// startNeighbours has some clients send one request after another. Theirs are local: only the picker holds those.
func (s *badStack) startNeighbours(t *testing.T, door string) *neighbours {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	n := &neighbours{stop: stop}
	for range 3 {
		transport := &http.Transport{DisableCompression: true}
		n.done.Go(func() {
			defer transport.CloseIdleConnections()
			for ctx.Err() == nil {
				n.ask(ctx, transport, s, door)
			}
		})
	}
	t.Cleanup(func() { stop(); n.done.Wait() })
	return n
}

func (n *neighbours) ask(ctx context.Context, by http.RoundTripper, s *badStack, door string) {
	c := harness.Call{API: pd.APICompletions, Text: "hello", Tokens: 2}
	began := time.Now()
	got, err := c.Over(ctx, by, door, c.Body(s.Model))
	took := time.Since(began)
	if err == nil && got.Status != http.StatusOK {
		err = fmt.Errorf("status %d", got.Status)
	}
	if ctx.Err() != nil {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.took = append(n.took, took)
	if err != nil {
		n.failed = append(n.failed, err.Error())
	}
}

// end returns how long requests took, and what failed.
func (n *neighbours) end() (took []time.Duration, failed []string) {
	n.stop()
	n.done.Wait()
	return n.took, n.failed
}
