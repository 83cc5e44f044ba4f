package scale

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/pd"
)

// handClock is a clock that a test moves. It has one timer at most.
type handClock struct {
	mu  sync.Mutex
	now time.Time
	due time.Time
	run func() // nil: there is no timer
}

func (c *handClock) Now() time.Time                  { c.mu.Lock(); defer c.mu.Unlock(); return c.now }
func (c *handClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

func (c *handClock) AfterFunc(d time.Duration, f func()) epp.Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due, c.run = c.now.Add(d), f
	return stopper{c}
}

type stopper struct{ *handClock }

func (s stopper) Stop() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	had := s.run != nil
	s.run = nil
	return had
}

// advance moves the clock to when the timer is due, and runs it; it reports whether there was one.
func (c *handClock) advance() bool {
	c.mu.Lock()
	run := c.run
	if run != nil {
		c.now, c.run = c.due, nil
	}
	c.mu.Unlock()
	if run == nil {
		return false
	}
	run()
	return true
}

// bench is a sizer with endpoints, and a clock.
type bench struct {
	*Sizer
	clock           *handClock
	prefill, decode []*epp.Endpoint
	random          *rand.Rand
}

func limits(least, most int) Role {
	return Role{Min: least, Max: most, Cost: 10, Ready: 2 * time.Minute}
}

func startSizer(t testing.TB, prefill, decode int) *bench {
	t.Helper()
	clock := &handClock{now: time.Unix(1000, 0)}
	c := Config{Objective: wanted, Prefill: limits(1, 50), Decode: limits(1, 50), Window: 5 * time.Minute}
	c.Prefill.Variant, c.Decode.Variant = "p", "d"
	b := &bench{Sizer: New(c, new(State), latency.NewModel(clock), clock), clock: clock, random: rand.New(rand.NewPCG(5, 6))}
	for i := range prefill + decode {
		to, role := &b.decode, "decode"
		if i < prefill {
			to, role = &b.prefill, "prefill"
		}
		e := epp.NewEndpoint("default", fmt.Sprintf("%s-%d", role, i), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 8000), "", map[string]string{pd.RoleLabel: role})
		e.Slot = i
		*to = append(*to, e)
		b.EndpointJoined(e)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

var decodeRow, prefillRow = epp.DecodeRow("decode"), epp.PrefillRow("prefill", 1)

// decision returns one about a prompt, which a prefill endpoint computes.
func (b *bench) decision(tokens int) *epp.Decision {
	return &epp.Decision{Verdict: pd.Remote, Tokens: tokens, Picks: []epp.StagePick{
		{Row: &decodeRow, Endpoints: b.decode[:1]}, {Row: &prefillRow, Endpoints: b.prefill[:1], Seen: &epp.Seen{}}}}
}

// serve has so many requests in a second come for some intervals, independently of each other, and end at once. each is called after each interval.
func (b *bench) serve(t *testing.T, intervals int, rate float64, prompt, answer int, each func()) {
	t.Helper()
	for range intervals {
		for range poisson(b.random, rate*Interval.Seconds()) {
			d := b.decision(prompt)
			b.Picked(nil, nil, d)
			b.Observe(&epp.Outcome{Decision: d, Result: &pd.AnswerSummary{End: pd.EndDone, Completion: int64(answer)}})
		}
		if !b.clock.advance() {
			t.Fatal("no timer is set")
		}
		each()
	}
}

func nothing() {}

// sizes returns what is wanted: prefill and decode.
func (b *bench) sizes() (prefill, decode int) {
	for _, s := range b.Sizes() {
		if s.Role == "prefill" {
			prefill = s.Desired
		} else {
			decode = s.Desired
		}
	}
	return prefill, decode
}

func TestSizesFollowTheLoad(t *testing.T) {
	b := startSizer(t, 2, 2)
	if p, d := b.sizes(); p != 2 || d != 2 {
		t.Errorf("before any request %d+%d are wanted: want those that there are", p, d)
	}
	b.serve(t, 30, 10, 2000, 200, nothing)
	p, d := b.sizes()
	b.serve(t, 6, 10, 8000, 200, nothing)
	if longer, same := b.sizes(); longer <= p || same != d {
		t.Errorf("longer prompts: %d+%d are wanted, before %d+%d: want more prefill only", longer, same, p, d)
	}
	b = startSizer(t, 2, 2)
	b.serve(t, 30, 10, 2000, 200, nothing)
	b.serve(t, 10, 10, 2000, 4000, nothing)
	if same, more := b.sizes(); more <= d || same != p {
		t.Errorf("longer answers: %d+%d are wanted, before %d+%d: want more decode only", same, more, p, d)
	}
}

func TestSizesFallAfterTheWindow(t *testing.T) {
	b := startSizer(t, 1, 1)
	b.serve(t, 30, 40, 2000, 400, nothing)
	p, d := b.sizes()
	b.serve(t, 16, 1, 2000, 400, nothing) // four minutes
	if sameP, sameD := b.sizes(); sameP < p || sameD < d {
		t.Errorf("four minutes after the load fell %d+%d are wanted, before %d+%d", sameP, sameD, p, d)
	}
	b.serve(t, 40, 1, 2000, 400, nothing)
	if lessP, lessD := b.sizes(); lessP >= p || lessD >= d {
		t.Errorf("fourteen minutes after the load fell %d+%d are wanted, before %d+%d", lessP, lessD, p, d)
	}
	b.serve(t, 40, 0, 0, 0, nothing)
	if lessP, lessD := b.sizes(); lessP != 1 || lessD != 1 {
		t.Errorf("without load %d+%d are wanted, want the limits", lessP, lessD)
	}
}

// TestSizesKeepAMargin: where a tenth more load would need one replica more, the size does not fall to what the load needs.
func TestSizesKeepAMargin(t *testing.T) {
	kept := 0
	for rate := 10; rate < 22; rate++ {
		b := startSizer(t, 40, 40)
		for range 60 { // 15 minutes
			for range rate * int(Interval.Seconds()) {
				d := b.decision(2000)
				b.Picked(nil, nil, d)
				b.Observe(&epp.Outcome{Decision: d, Result: &pd.AnswerSummary{End: pd.EndDone, Completion: 300}})
			}
			b.clock.advance()
		}
		for _, s := range b.Sizes() {
			switch {
			case s.Desired == s.Needed+1:
				kept++
			case s.Desired != s.Needed:
				t.Errorf("%d requests a second: %+v", rate, s)
			}
		}
	}
	if kept == 0 {
		t.Error("no size has a margin")
	}
}

func TestSizesDoNotExceedTheLimits(t *testing.T) {
	b := startSizer(t, 1, 1)
	b.serve(t, 8, 600, 6000, 400, nothing)
	if p, d := b.sizes(); p != 50 || d > 50 {
		t.Errorf("%d+%d are wanted, at most 50 are allowed", p, d)
	}
	for _, s := range b.Sizes() {
		if s.Role == "prefill" && s.Needed <= 50 {
			t.Errorf("%+v: want the need without limits", s)
		}
	}
}

// TestSteadyLoadDoesNotOscillate is the bar: at steady load the direction changes at most once in ten minutes. The loads are those at which a size
// is only just enough, or only just not.
func TestSteadyLoadDoesNotOscillate(t *testing.T) {
	for rate := 6.0; rate < 60; rate *= 1.8 {
		b := startSizer(t, 1, 1)
		at := func() [2]int { p, d := b.sizes(); return [2]int{p, d} }
		b.serve(t, 40, rate, 2000, 300, nothing)
		last, grew, reversals := at(), [2]bool{true, true}, [2][]time.Time{}
		b.serve(t, 6*40, rate, 2000, 300, func() {
			now := at()
			for role := range now {
				if now[role] != last[role] && (now[role] > last[role]) != grew[role] {
					grew[role] = !grew[role]
					reversals[role] = append(reversals[role], b.clock.Now())
				}
			}
			last = now
		})
		for role, times := range reversals {
			for i := 1; i < len(times); i++ {
				if d := times[i].Sub(times[i-1]); d < 10*time.Minute {
					t.Errorf("%.1f requests in a second, role %d: two reversals in %v", rate, role, d)
				}
			}
		}
	}
}

func TestSeveralPickers(t *testing.T) {
	alone, shared := startSizer(t, 1, 1), startSizer(t, 1, 1)
	alone.serve(t, 20, 40, 2000, 300, nothing)
	shared.prefill[0].ChargeOthers(epp.InFlight{}, epp.InFlight{Requests: 30})
	shared.serve(t, 20, 40, 2000, 300, nothing)
	p, _ := alone.sizes()
	if more, _ := shared.sizes(); more != p {
		t.Errorf("%d prefill replicas are wanted while only others have requests in flight, %d alone", more, p)
	}
	var m mix
	m.allInFlight, m.ownInFlight = 90, 30
	if got := m.pickers(); got != 3 {
		t.Errorf("%v times the requests of this picker, want 3", got)
	}
}

func TestReplicasWithRanks(t *testing.T) {
	b := startSizer(t, 1, 0)
	for rank := range 4 {
		e := epp.NewEndpoint("default", fmt.Sprintf("pod-rank-%d", rank), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, 1}), uint16(8000+rank)), "", map[string]string{pd.RoleLabel: "decode"})
		e.Slot, e.Pod = 1+rank, "pod"
		b.decode = append(b.decode, e)
		b.EndpointJoined(e)
	}
	if sizes := b.Sizes(); sizes[0].Current != 1 {
		t.Errorf("%+v: want four ranks to be one replica", sizes[0])
	}
	single := startSizer(t, 1, 1)
	b.serve(t, 20, 60, 2000, 1000, nothing)
	single.serve(t, 20, 60, 2000, 1000, nothing)
	_, ranks := b.sizes()
	if _, d := single.sizes(); ranks >= d || ranks*4 < d {
		t.Errorf("%d replicas with four ranks are wanted, %d with one", ranks, d)
	}
	b.EndpointLeft(b.decode[0].With("", map[string]string{pd.RoleLabel: "decode"}))
	b.EndpointLeft(b.prefill[0])
	if sizes := b.Sizes(); sizes[1].Current != 0 || len(b.endpoints) != 3 {
		t.Errorf("%+v with %d endpoints after two have left", sizes, len(b.endpoints))
	}
}

// TestGroupsAreReplicas: a group of a LeaderWorkerSet is one replica, whether only its leader serves or all its pods do.
func TestGroupsAreReplicas(t *testing.T) {
	b := startSizer(t, 1, 0)
	for i := range 6 {
		labels := map[string]string{pd.RoleLabel: "decode", setLabel: "wide", groupLabel: fmt.Sprint(i / 3)}
		e := epp.NewEndpoint("default", fmt.Sprintf("wide-%d", i), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 2, byte(i)}), 8000), "", labels)
		e.Slot, e.Pod = 1+i, fmt.Sprintf("wide-%d-%d", i/3, i%3)
		b.decode = append(b.decode, e)
		b.EndpointJoined(e)
	}
	if sizes := b.Sizes(); sizes[0].Current != 2 {
		t.Errorf("%+v: want two groups of three pods to be two replicas", sizes[0])
	}
	if _, decode := b.roles(); decode.ranks() != 3 {
		t.Errorf("a group has %d endpoints, want 3", decode.ranks())
	}
	b.EndpointLeft(b.decode[0])
	if sizes := b.Sizes(); sizes[0].Current != 2 {
		t.Errorf("%+v: want a group that lacks a pod to be a replica", sizes[0])
	}
}

// gathered returns how many series a metric has, and their sum.
func gathered(t *testing.T, registry *prometheus.Registry, metric string) (n int, sum float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == metric {
			for _, m := range f.GetMetric() {
				n, sum = n+1, sum+m.GetGauge().GetValue()
			}
		}
	}
	return n, sum
}

func TestMetrics(t *testing.T) {
	b := startSizer(t, 3, 2)
	registry := prometheus.NewRegistry()
	registry.MustRegister(b.Sizer)
	for _, metric := range []string{"tandem_desired_replicas", "wva_desired_replicas", "wva_current_replicas", "inferno_desired_replicas", "inferno_current_replicas"} {
		if n, sum := gathered(t, registry, metric); n != 2 || sum != 5 {
			t.Errorf("%s: %d series with a sum of %v, want 2 and 5", metric, n, sum)
		}
	}
	if n, sum := gathered(t, registry, "tandem_replica_start_seconds"); n != 2 || sum != 240 {
		t.Errorf("tandem_replica_start_seconds: %d series with a sum of %v, want 2 and 240", n, sum)
	}
	b.config.Prefill.Max = 0
	if n, sum := gathered(t, registry, "tandem_desired_replicas"); n != 1 || sum != 2 {
		t.Errorf("without prefill: %d series with a sum of %v, want 1 and 2", n, sum)
	}
}

func TestCloseStopsTheTimer(t *testing.T) {
	b := startSizer(t, 1, 1)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if b.clock.advance() {
		t.Error("a timer is set after Close")
	}
	b.EndpointJoined(b.decode[0])
	b.tick()
	if b.clock.advance() {
		t.Error("a timer is set by an interval that ends after Close")
	}
}

func TestClassOf(t *testing.T) {
	last := 0
	for tokens := range 1 << 21 {
		class := classOf(tokens)
		if class != last && class != last+1 {
			t.Fatalf("%d tokens are in class %d, one fewer in %d", tokens, class, last)
		}
		last = class
	}
	if last != classes-1 {
		t.Errorf("the longest prompts are in class %d of %d", last, classes)
	}
}

// BenchmarkPicked is what counting costs each pick. Prompts of one length on all cores at once, which share their counters, are the worst case.
func BenchmarkPicked(b *testing.B) {
	s := startSizer(b, 1, 1)
	d := s.decision(2000)
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			s.Picked(nil, nil, d)
		}
	})
}

// backlog is what a test has wait.
type backlog struct{ epp.InFlight }

func (b *backlog) Backlog() epp.InFlight { return b.InFlight }

// TestBacklogRaisesSizes: a pool that serves as much as it can, while requests pile up, is too small, although its picks do not increase.
func TestBacklogRaisesSizes(t *testing.T) {
	alone, piling := startSizer(t, 1, 1), startSizer(t, 1, 1)
	var waits backlog
	piling.FollowBacklog(&waits)
	alone.serve(t, 12, 4, 4000, 300, nothing)
	piling.serve(t, 12, 4, 4000, 300, func() { waits.Requests, waits.Tokens = waits.Requests+600, waits.Tokens+600*4000 })
	p, d := alone.sizes()
	if moreP, moreD := piling.sizes(); moreP <= p || moreD <= d {
		t.Errorf("%d+%d are wanted while requests pile up, %d+%d without", moreP, moreD, p, d)
	}
	b := startSizer(t, 1, 1)
	standing := backlog{epp.InFlight{Requests: 2000, Tokens: 2000 * 4000}}
	b.FollowBacklog(&standing)
	b.serve(t, 1, 4, 4000, 300, nothing)
	b.serve(t, 30, 4, 4000, 300, nothing)
	if more, _ := b.sizes(); more <= p {
		t.Errorf("%d prefill replicas are wanted while 2000 requests stand, %d without", more, p)
	}
}

// TestZero: a pool without load goes to zero as a whole, the first request that waits wakes it at once, and it stays awake for a while.
func TestZero(t *testing.T) {
	b := startSizer(t, 0, 0)
	b.config.Prefill.Min, b.config.Decode.Min = 0, 0
	told := 0
	b.Notify(func() { told++ })
	if p, d := b.sizes(); p != 0 || d != 0 {
		t.Errorf("%d+%d are wanted of a pool that no request has come to", p, d)
	}
	waits := backlog{epp.InFlight{Requests: 1, Tokens: 500}}
	b.FollowBacklog(&waits)
	b.Wake()
	if p, d := b.sizes(); p != 1 || d != 1 || told != 1 {
		t.Errorf("%d+%d are wanted when a request waits, and that is told %d times, want 1+1 and once", p, d, told)
	}
	b.Wake()
	if told != 1 {
		t.Error("a pool that is awake is woken")
	}
	waits = backlog{}
	for range 38 { // 9.5 minutes
		if !b.clock.advance() {
			t.Fatal("no size is computed while there are no endpoints")
		}
		if p, d := b.sizes(); p != 1 || d != 1 {
			t.Fatalf("%d+%d are wanted %d intervals after the request", p, d, len(b.counts))
		}
	}
	for range 30 {
		b.clock.advance()
	}
	if p, d := b.sizes(); p != 0 || d != 0 {
		t.Errorf("%d+%d are wanted 17 minutes after the only request", p, d)
	}
}

// TestPrefillStaysWithDecode: while decode serves, prefill does not go to zero, since no pick would show that it is needed again.
func TestPrefillStaysWithDecode(t *testing.T) {
	b := startSizer(t, 1, 1)
	b.config.Prefill.Min, b.config.Decode.Min = 0, 0
	for range 80 {
		for range 30 {
			d := b.decision(200)
			d.Verdict, d.Picks = pd.Local, d.Picks[:1]
			b.Picked(nil, nil, d)
		}
		b.clock.advance()
	}
	if p, d := b.sizes(); p != 1 || d < 1 {
		t.Errorf("%d+%d are wanted, want one prefill replica while decode serves", p, d)
	}
}

// TestNeedOfTheSizer: for the load that it follows, the sizer needs what it says that any such load needs, and twice as much load needs more. Requests
// tells the load, whatever part of it is old.
func TestNeedOfTheSizer(t *testing.T) {
	b := startSizer(t, 2, 2)
	var asked Requests
	for range 40 { // ten minutes
		for range 20 * int(Interval.Seconds()) {
			o := &epp.Outcome{Decision: b.decision(2000), Result: &pd.AnswerSummary{End: pd.EndDone, Completion: 300}}
			b.Picked(nil, nil, o.Decision)
			b.Observe(o)
			asked.Observe(o)
		}
		b.clock.advance()
	}
	asked.Observe(&epp.Outcome{Decision: &epp.Decision{Verdict: pd.Local, Tokens: 4000, Cached: 3990, Picks: []epp.StagePick{{Row: &decodeRow, Endpoints: b.decode[:1]}}}})
	load := asked.Load(20)
	if load.Rate != 20 || load.Answer != 300 || load.Prompt < 2000 || load.Prompt > 2001 || load.Chosen {
		t.Fatalf("%+v, want 20 requests a second of 2000 and 300 tokens", load)
	}
	if first, last := load.Prompts[0], load.Prompts[classOf(2000)]; first.Tokens != 10 || first.Remote != 0 || last.Tokens != 2000 || last.Remote != 1 {
		t.Errorf("prompts %+v and %+v, want one of 10 computed tokens on decode, and 2000 on prefill", first, last)
	}
	got := b.Need(&load)
	for _, s := range b.Sizes() {
		if want := map[string]int{"prefill": got.Prefill, "decode": got.Decode}[s.Role]; s.Needed != want {
			t.Errorf("%s: %d are needed, and %d for a load like it", s.Role, s.Needed, want)
		}
	}
	load = asked.Load(40)
	if more := b.Need(&load); more.Prefill <= got.Prefill {
		t.Errorf("%+v for twice the load of %+v", more, got)
	}
}
