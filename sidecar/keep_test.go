package sidecar

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/sim"
	"github.com/tandem-serving/tandem/sim/fault"
	"github.com/tandem-serving/tandem/sim/server"
	"github.com/tandem-serving/tandem/sim/transport"
	"github.com/tandem-serving/tandem/transfer"
	"github.com/tandem-serving/tandem/transfer/keeper"
)

// notifier is a transfer.Notifier that records its messages, and that a test can make fail.
type notifier struct {
	*transport.TCP
	beat chan struct{} // gets one for each heartbeat, up to its size

	mu       sync.Mutex // guards the fields below
	dead     bool
	beats    int
	releases []string
}

func newNotifier(t testing.TB) *notifier {
	t.Helper()
	agent, err := transport.NewTCP(transport.TCPConfig{Name: "sidecar"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = agent.Close() }) // an error of closing loses nothing
	return &notifier{TCP: agent, beat: make(chan struct{}, 64)}
}

// option makes the sidecar use the notifier.
func (k *notifier) option() option { return set(func(c *Config) { c.Keep.Notifier = k }) }

// Notify implements transfer.Notifier.
func (k *notifier) Notify(ctx context.Context, to transfer.Peer, message []byte) error {
	k.mu.Lock()
	dead := k.dead
	if !dead && strings.HasPrefix(string(message), "HB:") {
		k.beats++
	} else if !dead {
		k.releases = append(k.releases, string(message))
	}
	k.mu.Unlock()
	if dead {
		return transfer.ErrGone
	}
	err := k.TCP.Notify(ctx, to, message)
	select {
	case k.beat <- struct{}{}:
	default:
	}
	return err
}

// State is what a NIXL agent process reports.
func (k *notifier) State() (keeper.State, <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dead {
		return keeper.State{Starts: 1, Err: transfer.ErrGone}, nil
	}
	return keeper.State{Starts: 1, About: "a test"}, nil
}

// fail makes the notifier fail from now on.
func (k *notifier) fail() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dead = true
}

func (k *notifier) notices() (beats int, releases []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.beats, append([]string(nil), k.releases...)
}

// mustNotify checks how many hand-offs were released by notices.
func (k *notifier) mustNotify(t *testing.T, releases int) {
	t.Helper()
	if _, sent := k.notices(); len(sent) != releases {
		t.Errorf("prefill was sent %q, want %d releases", sent, releases)
	}
}

// await waits for n heartbeats.
func (k *notifier) await(t *testing.T, n int) {
	t.Helper()
	for range n {
		wait(t, k.beat, "a heartbeat")
	}
}

// shortLease is a lease that tests wait for. Heartbeats may be late by a third of it, which is ample on a busy machine.
const shortLease = 2 * time.Second

// leased is a sidecar for engines with a short lease.
var leased = set(func(c *Config) { c.Fallback.Lease = shortLease })

func startLeasedSim(t *testing.T) *server.Server {
	t.Helper()
	return startSim(t, sim.Config{KV: sim.KVConfig{Lease: shortLease}})
}

// longer is how many heartbeats take longer than a lease: one comes each third of it.
const longer = 5

// withNotifier runs a case with and without a notifier.
func withNotifier(t *testing.T, run func(t *testing.T, q bool, k *notifier, o []option)) {
	for _, stream := range []bool{true, false} {
		for name, with := range map[string]bool{"kept": true, "without": false} {
			t.Run(map[bool]string{true: "stream/", false: "whole/"}[stream]+name, func(t *testing.T) {
				t.Parallel()
				if !with {
					run(t, stream, nil, []option{leased})
					return
				}
				k := newNotifier(t)
				run(t, stream, k, []option{leased, k.option()})
			})
		}
	}
}

// asking sends a request in a goroutine of its own.
func asking(t *testing.T, s *rig, body, prefill string) <-chan reply {
	t.Helper()
	answers := make(chan reply, 1)
	go func() { answers <- post(t, s.url+completionsPath, body, pd.HeaderPrefill, prefill) }()
	return answers
}

// mustBeRight checks that an answer has the text of an engine that answers alone.
func mustBeRight(t *testing.T, got reply, body string) {
	t.Helper()
	plain := startSim(t, sim.Config{})
	if want := textOf(post(t, plain.URL+completionsPath, body).body); got.status != 200 || want == "" || textOf(got.body) != want {
		t.Errorf("%d, text %q, want %q", got.status, textOf(got.body), want)
	}
}

func ranOut(st sim.State) bool { return st.Expired > 0 }

// Decode takes longer than a lease to note the hand-off, which the sidecar cannot see.
func TestHeldBeforeDecodeKnows(t *testing.T) {
	t.Parallel()
	withNotifier(t, func(t *testing.T, stream bool, k *notifier, o []option) {
		prefill, decode := startLeasedSim(t), startLeasedSim(t)
		if err := decode.Faults.Add(fault.Fault{Leg: "decode", Fault: "slow", Arg: "stop", Count: 1}); err != nil {
			t.Fatal(err)
		}
		s, body := startRig(t, addrOf(decode), o...), simAsk(100, 8, stream)
		answer := asking(t, s, body, addrOf(prefill))
		if k == nil {
			mustState(t, prefill, "the lease to end", ranOut)
			decode.Faults.Clear()
			wait(t, answer, "the answer")
			return // its text depends on the request that has the blocks now
		}
		k.await(t, longer)
		decode.Faults.Clear()
		got := wait(t, answer, "the answer")
		got.mustBe(t, 200, servedRemote)
		mustBeRight(t, got, body)
		s.end()
		mustFree(t, prefill, decode)
		k.mustNotify(t, 0)
		s.mustCount(t, 0, "tandem_kv_release_total")
	})
}

// Decode is saturated, and puts the hand-off into its queue.
func TestHeldInDecodesQueue(t *testing.T) {
	t.Parallel()
	withNotifier(t, func(t *testing.T, stream bool, k *notifier, o []option) {
		prefill := startLeasedSim(t)
		decode := startSim(t, sim.Config{TimeScale: 1, Schedule: sim.ScheduleConfig{MaxSequences: 1}, KV: sim.KVConfig{Lease: shortLease}})
		first := startLeaver(t, decode.URL+completionsPath, simAsk(20, 4000, true))
		wait(t, first.begun, "decode to be busy")
		s, body := startRig(t, addrOf(decode), o...), simAsk(100, 8, stream)
		answer := asking(t, s, body, addrOf(prefill))
		mustState(t, prefill, "prefill to finish", func(st sim.State) bool { return st.Blocks.Pinned > 0 })
		if k != nil {
			k.await(t, longer)
		} else {
			<-time.After(shortLease * 3 / 2)
		}
		first.mustLeave(t)
		got := wait(t, answer, "the answer")
		got.mustBe(t, 200, servedRemote)
		mustBeRight(t, got, body)
		s.end()
		mustFree(t, prefill, decode)
	})
}

// A leg that is sent after the age limit of its hand-off is not late if heartbeats have renewed the lease.
func TestHeldBeyondTheAgeLimit(t *testing.T) {
	t.Parallel()
	withNotifier(t, func(t *testing.T, stream bool, k *notifier, o []option) {
		prefill, decode := startLeasedSim(t), startLeasedSim(t)
		neverHung := set(func(c *Config) { c.Engine.HangAfter = 0 })
		s, body := startRig(t, addrOf(decode), append(o, neverHung)...), simAsk(100, 8, stream)
		dial, slow := s.local.DialContext, sync.OnceFunc(func() {
			if k == nil {
				<-time.After(s.cfg.Fallback.Lease*2/3 + shortLease/10)
			} else {
				k.await(t, longer)
			}
		})
		s.local.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			slow()
			return dial(ctx, network, address)
		}
		got := wait(t, asking(t, s, body, addrOf(prefill)), "the answer")
		mustBeRight(t, got, body)
		s.end()
		if k == nil {
			got.mustBe(t, 200, "local;reason=handoff-late;attempts=1;candidate=0")
			s.mustCount(t, 1, "tandem_retries_total", "leg", "decode", "cause", "late")
			return
		}
		got.mustBe(t, 200, servedRemote)
		s.mustCount(t, 0, "tandem_retries_total")
		mustFree(t, prefill, decode)
	})
}

// Heartbeats end with decode's first byte: prefill expects some, to show that none come.
func TestHoldEndsWithTheFirstByte(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, q question) {
		t.Parallel()
		k, ready, rest := newNotifier(t), newGate(), newGate()
		begin, end := streams(firstEvent), secondEvent+doneEvent
		if !q.stream {
			begin, end = chunked(200, "application/json", wholeAnswer[:20]), wholeAnswer[20:]
		}
		prefill, decode := startLeasedSim(t), startEngine(t, then(ready.act, begin, rest.act, func(w http.ResponseWriter, _ *asked) {
			_, _ = io.WriteString(w, end) // a client that does not read it has left
		}))
		s := startRig(t, decode.addr, leased, k.option())
		l := startLeaver(t, s.url+completionsPath, simAsk(100, 8, q.stream), pd.HeaderPrefill, addrOf(prefill))
		wait(t, ready.arrived, "the decode leg")
		k.await(t, 2)
		close(ready.opened)
		wait(t, l.begun, "the answer to begin")
		before, _ := k.notices()
		mustState(t, prefill, "the lease to end", ranOut)
		if after, _ := k.notices(); after > before+1 || after < 2 { // one may have been due at that moment
			t.Errorf("%d heartbeats before the first byte, %d after a lease more", before, after)
		}
		close(rest.opened)
		if err := wait(t, l.ended, "the end of the answer"); err != nil {
			t.Error(err)
		}
		s.end()
		k.mustNotify(t, 0)
	})
}

// A hold ends with its request, however that ends.
func TestHoldEndsWithTheExchange(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, q question) {
		t.Parallel()
		k, g := newNotifier(t), newGate()
		prefill, decode := startLeasedSim(t), startEngine(t, then(g.act, hangs))
		s := startRig(t, decode.addr, leased, k.option())
		l := startLeaver(t, s.url+completionsPath, simAsk(100, 8, q.stream), pd.HeaderPrefill, addrOf(prefill))
		wait(t, g.arrived, "the decode leg")
		k.await(t, 1)
		l.mustLeave(t)
		s.busy.Wait()
		before, _ := k.notices()
		mustState(t, prefill, "the lease to end", ranOut)
		s.end()
		if after, _ := k.notices(); after > before+1 {
			t.Errorf("%d heartbeats while the request ran, %d in all", before, after)
		}
	})
}
