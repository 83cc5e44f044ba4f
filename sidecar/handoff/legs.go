package handoff

import (
	"context"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/loglimit"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/lease"
	"github.com/tandem-serving/tandem/sidecar/relay"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// Config says which engines take the legs, and within which bounds.
type Config struct {
	// Dialect is the hand-off protocol of the engines.
	Dialect dialect.Dialect
	// Stripped are the headers of clients that no leg has.
	Stripped transport.Stripped
	Intake   *intake.Intake
	// Budget bounds requests that are prefilled locally although they were planned remote, or remotely once more if they must be.
	Budget *pd.FallbackBudget
	// Leases renews and releases hand-offs by notices. nil: they are not renewed, and released by way of decode.
	Leases *lease.Registry

	// Decode is the local engine, at Host and Port. Other ranks of it have Legs of their own: see ForRank.
	Decode transport.Engine
	Host   string
	Port   int
	// FirstEvent is the longest silence of a remote stream after its headers, before the call is redone without the hand-off.
	FirstEvent time.Duration
	// HangAfter is how long an engine must answer nothing until it counts as hung, at least; 0 = none does.
	HangAfter time.Duration

	// Prefill gives the engine of a prefill pod.
	Prefill func(pd.Target) transport.Engine
	// Ask gives an engine again, over connections that no leg uses, to ask it which hand-off protocol it speaks. nil: it is not asked.
	Ask func(transport.Engine, pd.Role) transport.Engine
	// PrefillTimeout is the longest time that one prefill leg may take.
	PrefillTimeout time.Duration
	// MaxRetries is how often a candidate is tried again, after RetryBackoff, when its failure may pass.
	MaxRetries   int
	RetryBackoff time.Duration
	// HedgeRatio is the share of prefill legs that may have a second one at the same time, to another candidate; 0 = none.
	HedgeRatio float64

	// Continue says whether streams whose engine dies go on elsewhere.
	Continue Continue
	// Encoding is how images, audio and video are encoded on other pods.
	Encoding Encoding

	// Pulls says from where engines fetch blocks that they lack.
	Pulls Pulls

	// Now is the clock that notices when the whole process stood still; nil is time.Now.
	Now func() time.Time

	// AnswerPause is the longest time in which a client may read nothing of its answer; 0 = unlimited.
	AnswerPause time.Duration
	// TellPods adds pd.HeaderPods to answers.
	TellPods bool
	// Record makes exchanges keep a Record.
	Record bool

	Tracer     trace.Tracer
	Propagator propagation.TextMapPropagator
	Metrics    Metrics
	Log        *slog.Logger
}

// Metrics are the metrics of legs and hand-offs.
type Metrics struct {
	Legs       *prometheus.HistogramVec // by leg, code
	HandoffAge prometheus.Histogram
	Retries    *prometheus.CounterVec // by leg, cause
	Releases   *prometheus.CounterVec // by way, result
	Stranded   prometheus.Counter
	Inflight   *prometheus.GaugeVec   // by role
	Continued  *prometheus.CounterVec // by cause, result
	Hedges     *prometheus.CounterVec // by result
	Encodes    *prometheus.CounterVec // by result
	Pulls      *prometheus.CounterVec // by result
	ITL        *relay.ByVerdict
	Links      *Links
}

func (m *Metrics) leg(name string, status int, took time.Duration) {
	m.Legs.WithLabelValues(name, strconv.Itoa(status)).Observe(took.Seconds())
}

// Legs runs the legs of all calls of one local engine. Make it with New, have Watch run, and end it with Wait. It is safe for
// concurrent use.
type Legs struct {
	Config
	*shared
	localEngine localEngine
	rerouting   misroutedList
	rank        int // of the local engine, among those with ports of their own
	monotonic   machineClock
	aborted     func(answer []byte) bool // tells whole answers, or data of events, of requests that the engine has failed; nil: none does
}

// shared is what the Legs of all ranks have in common.
type shared struct {
	warnings *loglimit.Limiter // one line a second about what can happen to every request
	denials  *loglimit.Limiter // the same for targets that are not allowed, so that a client that tries many hides nothing else
	tracing  tracing
	stalls   *stallWatch
	down     *downList
	hung     *hungList
	hedges   *hedger
	// protocols knows the engines that speak another protocol.
	protocols *protocolList
	// tiers knows the memories from which engines may fetch blocks.
	tiers *tierList
	// unable knows the prefill engines that do not read back.
	unable *unableList
	// others knows the decode pods that may go on with streams.
	others  *otherList
	parsers parsers

	evacuating atomic.Bool   // streams leave the local engine
	leaving    chan struct{} // has an element for each stream that asks other engines because of that

	open      context.Context // ends with Wait
	close     context.CancelFunc
	releasing atomic.Int64   // hand-offs that are being released
	work      sync.WaitGroup // the goroutines of releases that go on after their exchange, and those that look at engines
}

// New makes the Legs of a configuration.
func New(c Config) *Legs {
	if c.Now == nil {
		c.Now = time.Now
	}
	s := &shared{warnings: loglimit.New(c.Log, time.Second), denials: loglimit.New(c.Log, time.Second),
		tracing: tracing{c.Tracer, c.Propagator}, stalls: newStallWatch(c.Now), down: newDownList(c.Now, c.Log)}
	s.open, s.close = context.WithCancel(context.Background())
	s.hung = newHungList(c.HangAfter, c.Log, s.open, &s.work)
	s.hedges = newHedger(c.HedgeRatio)
	s.protocols = newProtocolList(c, s.open, &s.work)
	s.tiers = newTierList(c)
	s.unable = newUnableList(c.Now)
	s.others = &otherList{Others: c.Continue.Others}
	s.leaving = make(chan struct{}, maxLeaving)
	s.parsers.turn = make(chan struct{}, 1)
	return legsOf(c, s)
}

func legsOf(c Config, s *shared) *Legs {
	legs := &Legs{Config: c, shared: s, monotonic: monotonic, rerouting: misroutedList{pods: map[pd.Target]bool{}}}
	legs.localEngine.address = net.JoinHostPort(c.Host, strconv.Itoa(c.Port))
	legs.localEngine.target = pd.Target{Host: c.Host, Port: uint16(c.Port)}
	legs.localEngine.changed = func() {
		s.protocols.doubt(legs.local())
		s.parsers.doubt()
	}
	if u, ok := c.Dialect.(dialect.Unfinisher); ok && !u.ClientsAbort() {
		legs.aborted = u.Unfinished
	}
	return legs
}

// ForRank returns the Legs of another rank of the local engine, at another port of its host. Both know which prefill pods are down, hang, or speak another protocol.
// Watch, Releasing and Wait of either are for both.
func (legs *Legs) ForRank(decode transport.Engine, port int) *Legs {
	c := legs.Config
	c.Decode, c.Port = decode, port
	other := legsOf(c, legs.shared)
	other.rank = port - legs.Port
	return other
}

// Watch notices, until ctx ends, when the whole process stands still: hand-offs are then older than they seem.
func (legs *Legs) Watch(ctx context.Context) { legs.stalls.run(ctx) }

// Releasing returns how many hand-offs are being released now. While there is one, the local engine is needed.
func (legs *Legs) Releasing() int { return int(legs.releasing.Load()) }

// Wait waits for the releases under way. No exchange may run any more.
func (legs *Legs) Wait() {
	legs.close()
	legs.work.Wait()
}

// background runs a release in a goroutine that goes on after its exchange.
func (legs *Legs) background(release func()) {
	legs.releasing.Add(1)
	legs.work.Go(func() {
		defer legs.releasing.Add(-1)
		release()
	})
}
