package extproc

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/pd"
)

// However and wherever a stream ends, its load ends with it, and nothing is logged.
func TestEnds(t *testing.T) {
	for name, end := range map[string]func(r *rig, s *call){
		"half-closed": func(_ *rig, s *call) { s.mustFinish() },
		"cancelled":   func(_ *rig, s *call) { s.cancel() },
		"connection lost": func(r *rig, _ *call) {
			if err := r.conn.Close(); err != nil {
				t.Error(err)
			}
		},
	} {
		for stage, c := range map[string]struct {
			frames   frames
			answers  int
			outcomes int
		}{
			"before the headers":  {nil, 0, 0},
			"within the body":     {frames{chat(more), requestBody(more, prompt[:9])}, 0, 0},
			"after the answer":    {frames{chat(more), requestBody(ends, prompt)}, 2, 1},
			"within the response": {frames{chat(more), requestBody(ends, prompt), responseHeaders(more)}, 3, 1},
			"after the response":  {frames{chat(more), requestBody(ends, prompt), responseHeaders(more), responseTrailers()}, 4, 1},
		} {
			t.Run(name+" "+stage, func(t *testing.T) {
				r := startRig(t, remotePool())
				s := r.open(t, "")
				s.send(c.frames...)
				for range c.answers {
					s.recv()
				}
				wait(t, r.handlers.first, "the stream to arrive")
				end(r, s)
				if all := r.outcomes(t); len(all) != c.outcomes {
					t.Errorf("outcomes %+v, want %d", all, c.outcomes)
				}
				r.pool.mustLoad(t, "0/0 0/0 0/0")
				r.mustMetric(t, 0, "tandem_extproc_violations_total")
				r.mustMetric(t, 0, "tandem_extproc_streams")
				if logged := r.log.String(); logged != "" {
					t.Errorf("logged: %s", logged)
				}
			})
		}
	}
}

// The load of a client that left while an endpoint was chosen for it ends at once, and is counted, in the pair too.
func TestClientLeavesBeforeTheDecision(t *testing.T) {
	for _, f := range []filter{filterOne, filterPicker} {
		r := startRig(t, remotePool())
		ctx, leave := context.WithCancel(t.Context())
		choose := r.pool.choose
		r.pool.choose = func(q *epp.Request) (*epp.Decision, error) { leave(); return choose(q) }
		kept := &leaving{ctx: ctx}
		st := &stream{s: r.Server, grpc: kept, filter: f, began: time.Now()}
		for i, frame := range []*procv3.ProcessingRequest{chat(more), requestBody(ends, prompt)} {
			if done, err := st.step(frame); done != (i == 1) || err != nil {
				t.Errorf("%v: frame %d: done %t, %v", f, i, done, err)
			}
		}
		st.close()
		r.pool.mustLoad(t, "0/0 0/0 0/0")
		if all := r.outcomes(t); len(all) != 1 || all[0].Status != 0 || len(kept.sent) > 0 || r.ledger.Len() > 0 {
			t.Errorf("%v: outcomes %+v, sent %q, %d in the ledger", f, all, describe(kept.sent), r.ledger.Len())
		}
		r.mustMetric(t, 1, "tandem_requests_total", "decision", "remote", "code", "0")
	}
}

// A pick may wait: for preparers, or for admission. It stops waiting when its stream ends, whatever ends it.
func TestWaitingPickEndsWithItsStream(t *testing.T) {
	for _, c := range []struct {
		name     string
		mark     client.Mark
		limit    time.Duration // of the decision; 0 = none
		leave    func(r *rig, s *call)
		refusals float64
	}{
		{"the client leaves", client.MarkNone, 0, func(_ *rig, s *call) { s.cancel() }, 0},
		{"the client of a pair leaves", client.MarkPicker, 0, func(_ *rig, s *call) { s.cancel() }, 0},
		{"the gateway's connection is lost", client.MarkNone, 0, func(r *rig, _ *call) { r.conn.Close() }, 0},
		{"the decision takes too long", client.MarkNone, 10 * time.Millisecond, func(*rig, *call) {}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPool(a)
			waiting := make(chan struct{})
			p.wait = func(ctx context.Context) error {
				close(waiting)
				<-ctx.Done()
				return context.Cause(ctx)
			}
			r := startRig(t, p, setting(func(cfg *Config) { cfg.DecisionTimeout = c.limit }))
			s := r.open(t, c.mark)
			s.send(chat(more), requestBody(ends, prompt))
			wait(t, waiting, "the pick")
			c.leave(r, s)
			if all := r.outcomes(t); float64(len(all)) != c.refusals {
				t.Errorf("outcomes %+v, want %v", all, c.refusals)
			}
			r.mustMetric(t, c.refusals, "tandem_requests_total")
			r.mustMetric(t, c.refusals, "tandem_phase_seconds")
			r.mustMetric(t, 0, "tandem_buffered_bytes")
			if logged := r.log.String(); logged != "" {
				t.Errorf("logged: %s", logged)
			}
		})
	}
}

// leaving is a sink whose client leaves with ctx.
type leaving struct {
	sink
	ctx context.Context
}

func (l *leaving) Context() context.Context { return l.ctx }

func TestDrain(t *testing.T) {
	plan := []string{pd.HeaderPlan, "local;id=0123456789abcdef;reason=bypassed;strict=0;epp=1", epp.HeaderDestination, a}
	r := startRig(t, remotePool())
	resting := []*call{r.open(t, ""), r.open(t, ""), r.open(t, client.MarkAcct)}
	resting[0].decide()
	resting[1].decide()
	resting[1].send(responseHeaders(more))
	resting[1].recv()
	resting[2].send(chat(more, plan...))
	resting[2].recv()
	reading := r.open(t, "")
	reading.send(chat(more), requestBody(more, prompt))
	echoing := r.open(t, "")
	echoing.first = duplexBoth
	echoing.decide()
	echoing.send(responseHeaders(more))
	echoing.recv()

	r.Drain()
	stopped := make(chan struct{})
	go func() { defer close(stopped); r.grpc.GracefulStop() }()
	for i, s := range resting {
		if answers, err := s.rest(); len(answers) > 0 || err != nil {
			t.Errorf("stream %d ended with %q, %v: Envoy cuts an answer on anything but OK", i, describe(answers), err)
		}
	}
	reading.send(requestBody(ends, ""))
	if answers, err := reading.rest(); err != nil || len(answers) != 2 {
		t.Errorf("a request that was on its way got %q, %v", describe(answers), err)
	}
	echoing.send(responseBody(more, "token"), responseBody(ends, ""))
	if answers, err := echoing.finish(); err != nil || len(answers) != 2 {
		t.Errorf("an answer that goes through the server got %q, %v", describe(answers), err)
	}
	wait(t, stopped, "GracefulStop")
	r.pool.mustLoad(t, "0/0 0/0 0/0")
	r.mustMetric(t, 0, "tandem_extproc_streams")
	if all := r.outcomes(t); len(all) != 1 {
		t.Errorf("outcomes %+v: what became of requests that the server left is not known", all)
	}
}

// New streams come until the gateway has heard of the end.
func TestNewStreamsWhileDraining(t *testing.T) {
	r := startRig(t, remotePool())
	r.Drain()
	for _, mark := range []client.Mark{"", client.MarkPicker} {
		s := r.open(t, mark)
		s.send(chat(more), requestBody(ends, prompt))
		if answers, err := s.rest(); err != nil || len(answers) != 2 {
			t.Errorf("filter %q got %q, %v", mark, describe(answers), err)
		}
	}
	s := r.open(t, client.MarkAcct)
	s.send(chat(more))
	if answers, err := s.rest(); err != nil || len(answers) != 1 {
		t.Errorf("the accountant got %q, %v", describe(answers), err)
	}
}

func TestDeadlines(t *testing.T) {
	const soon = time.Millisecond
	for _, c := range []struct {
		name   string
		config func(*Config)
		frames frames
		picked bool
		status int
		reason pd.Reason
	}{
		{"body never comes", func(c *Config) { c.BodyPause = soon }, frames{chat(more)}, false, 408, pd.SlowBody},
		{"body stops", func(c *Config) { c.BodyPause = soon }, frames{chat(more), requestBody(more, prompt[:5])}, false, 408, pd.SlowBody},
		{"no decision", func(c *Config) { c.DecisionTimeout = soon }, frames{chat(more), requestBody(ends, prompt)}, true, 504, pd.Deadline},
		{"no decision for a GET", func(c *Config) { c.DecisionTimeout = soon }, frames{get("/v1/models")}, true, 504, pd.Deadline},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPool(a)
			answered := make(chan struct{})
			p.choose = func(r *epp.Request) (*epp.Decision, error) {
				<-answered
				return p.local(r, p.endpoints[0])
			}
			recorder := tracetest.NewSpanRecorder()
			r := startRig(t, p, setting(c.config), traced(recorder))
			s := r.open(t, "")
			s.send(c.frames...)
			got := s.recv()
			if code := got.GetImmediateResponse().GetStatus().GetCode(); int(code) != c.status {
				t.Errorf("%s, want %d", describe1(got), c.status)
			}
			if said := headersSet(t, got)[pd.HeaderDecision]; said != "refused;reason="+string(c.reason) {
				t.Errorf("decision %s", said)
			}
			close(answered)
			if answers, err := s.rest(); len(answers) > 0 || err != nil {
				t.Errorf("after the answer: %q, %v", describe(answers), err)
			}
			r.mustOutcome(t, c.status, c.frames[0].GetRequestHeaders(), c.reason)
			spans := recorder.Ended()
			if len(spans) != 1 || !slices.Contains(spans[0].Attributes(), attribute.String("tandem.pd.reason", string(c.reason))) {
				t.Errorf("spans %v", spans)
			}
		})
	}
}

// A sender that is slow is not silent, and an answer that has begun is not answered over.
func TestDeadlinesSpareSlowSenders(t *testing.T) {
	now := time.Unix(1000, 0)
	c := &Config{BodyRate: 1000, BodyPause: 2 * time.Second, DecisionTimeout: 5 * time.Second}
	for _, k := range []struct {
		name    string
		w       deadline
		c       *Config
		left    time.Duration
		limited bool
	}{
		{"nothing is waited for", deadline{}, c, 0, false},
		{"fresh", deadline{state: waitBody, since: now, last: now}, c, 2 * time.Second, true},
		{"slow, not silent", deadline{state: waitBody, since: now.Add(-5 * time.Second), last: now.Add(-time.Second), bytes: 9000}, c, time.Second, true},
		{"dripping", deadline{state: waitBody, since: now.Add(-9 * time.Second), last: now, bytes: 8999}, c, time.Second, true},
		{"long, and long under way", deadline{state: waitBody, since: now.Add(-time.Hour), last: now, bytes: 4 << 20}, c, 2 * time.Second, true},
		{"silent", deadline{state: waitBody, since: now.Add(-3 * time.Second), last: now.Add(-2 * time.Second), bytes: 3000}, c, 0, true},
		{"deciding", deadline{state: waitDecision, since: now.Add(-time.Second), last: now}, c, 4 * time.Second, true},
		{"waiting for capacity", deadline{state: waitDecision, since: now.Add(-time.Minute), last: now, queue: time.Minute}, c, 5 * time.Second, true},
		{"waiting without a limit of decisions", deadline{state: waitDecision, since: now, queue: time.Minute}, &Config{}, 0, false},
		{"no limits", deadline{state: waitBody}, &Config{}, 0, false},
		{"no limit of pauses", deadline{state: waitBody, since: now}, &Config{BodyRate: 1000}, 0, false},
	} {
		if left, limited := k.w.left(k.c, now); left != k.left || limited != k.limited {
			t.Errorf("%s: %v %t, want %v %t", k.name, left, limited, k.left, k.limited)
		}
	}

	r := startRig(t, newPool(a), setting(func(c *Config) { c.BodyPause = 5 * time.Millisecond }))
	s := r.open(t, "")
	s.send(chat(more), responseHeaders(more)) // the gateway answers by itself
	s.recv()
	timer := time.NewTimer(20 * time.Millisecond) // several pauses long: what comes now must not be an answer
	defer timer.Stop()
	<-timer.C
	s.send(requestBody(ends, prompt))
	if answers, err := s.finish(); err != nil || len(answers) != 2 {
		t.Errorf("got %q, %v", describe(answers), err)
	}
}

// TestRandomSequences sends frames in any order and ends streams anywhere. Whatever happens, nothing stays in flight,
// nothing is taken back twice, and every stream ends.
func TestRandomSequences(t *testing.T) {
	const streams, workers = 400, 8
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	p := remotePool()
	r := startRig(t, p)
	var group sync.WaitGroup
	for w := range workers {
		random := rand.New(rand.NewPCG(seed, uint64(w)))
		group.Go(func() {
			for range streams / workers {
				r.play(t, script(random, 12))
			}
		})
	}
	group.Wait()
	r.allGone(t)
	r.ledger.Close()
	p.mustLoad(t, "0/0 0/0 0/0")
	r.mustMetric(t, 0, "tandem_extproc_streams")
}

// script returns a random way to use a stream: the first byte says how it is opened, the last one how it ends, the others are
// frames. Most of them begin like a real one.
func script(random *rand.Rand, most int) []byte {
	s := []byte{byte(random.IntN(256))}
	if random.IntN(4) > 0 {
		s = append(s, 0, 2)
	}
	for range random.IntN(most) {
		s = append(s, byte(random.IntN(256)))
	}
	return append(s, byte(random.IntN(256)))
}

var playMarks = []client.Mark{"", client.MarkPicker, client.MarkAcct, "bogus"}

// play uses a stream as the script says, and demands that it ends.
func (r *rig) play(t testing.TB, script []byte) {
	if len(script) < 2 {
		return
	}
	s := r.open(quietT{t}, playMarks[script[0]%4])
	defer s.cancel()
	switch script[0] / 4 % 4 {
	case 1:
		s.first = duplexBoth
	case 2:
		s.first = nil
	}
	last := script[len(script)-1]
	for _, code := range script[1 : len(script)-1] {
		s.send(playFrame(code))
	}
	if last%3 == 0 {
		s.cancel()
	}
	answers, err := s.finish()
	immediate := slices.IndexFunc(describe(answers), func(d string) bool { return strings.HasPrefix(d, "immediate") })
	if immediate >= 0 && immediate != len(answers)-1 {
		t.Errorf("script %x: an immediate answer is not the last of %q", script, describe(answers))
	}
	if code := status.Code(err); code == codes.Internal || code == codes.Unknown || code == codes.Unavailable {
		t.Errorf("script %x: %v", script, err)
	}
}

var playPlan = "remote;id=%016x;reason=uncached;strict=0;epp=0.5;report"

func playFrame(code byte) *procv3.ProcessingRequest {
	arg := int(code / 13)
	switch code % 13 {
	case 0:
		return chat(more, pd.HeaderPlan, fmt.Sprintf(playPlan, arg), epp.HeaderDestination, a+","+b, pd.HeaderPrefill, b)
	case 1:
		return chat(ends)
	case 2:
		return requestBody(ends, prompt)
	case 3:
		return requestBody(more, prompt[:30])
	case 4:
		return requestBody(ends, prompt[30:])
	case 5:
		return requestBody(more, "")
	case 6:
		return requestTrailers("x", "y")
	case 7:
		return served(responseHeaders(arg%2 == 0), []string{a, b, c6, "x"}[arg%4])
	case 8:
		return responseBody(arg%2 == 0, "token")
	case 9:
		return responseTrailers(pd.HeaderOutcome, "done", pd.HeaderTiming, "decode;dur=1")
	case 10:
		return get("/v1/models")
	case 11:
		return &procv3.ProcessingRequest{}
	default:
		return requestHeaders(arg%2 == 0, ":method", "POST", ":path", "/v1/messages", "content-length", fmt.Sprint(arg<<16))
	}
}

// FuzzStream plays scripts: see script. Nothing may panic, hang or leak.
func FuzzStream(f *testing.F) {
	for code := range 13 {
		f.Add([]byte{0, byte(code), 1})
		f.Add([]byte{5, 0, 2, byte(code), 7, 8, 1})
		f.Add([]byte{2, 0, byte(code), 9, 0})
	}
	p := remotePool()
	r := startRig(f, p)
	f.Fuzz(func(t *testing.T, script []byte) {
		r.play(t, script[:min(len(script), 64)])
		r.allGone(t)
		for e := range slices.Values(p.endpoints) {
			if load := e.InFlight(); load.Requests > r.ledger.Len() || load.Tokens > r.ledger.Len()*tokens {
				t.Fatalf("%v are in flight at %s while %d reservations wait", load, e, r.ledger.Len())
			}
		}
	})
}

// Envoy garbles a long body before trailers if a second filter follows. Where one filter picks, gateways without retries do not.
func TestTrailersAfterALongBody(t *testing.T) {
	long := prompt + strings.Repeat(" ", maxFrame)
	for _, c := range []struct {
		name   string
		mark   client.Mark
		body   string
		served bool
	}{
		{"picker of a pair, short", client.MarkPicker, prompt, true},
		{"picker of a pair, long", client.MarkPicker, long, false},
		{"one filter, long", "", long, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := startRig(t, newPool("10.0.0.1:8000"))
			s := r.open(t, c.mark)
			s.send(chat(more), requestBody(more, c.body), requestTrailers())
			refused := s.recv().GetImmediateResponse()
			if (refused == nil) != c.served {
				t.Fatalf("refused: %v", refused)
			}
			if !c.served && (int(refused.GetStatus().GetCode()) != 400 || !strings.Contains(string(refused.GetBody()), "Send it without trailers")) {
				t.Errorf("%v", refused)
			}
		})
	}
}
