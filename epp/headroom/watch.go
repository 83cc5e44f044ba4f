package headroom

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// Config says what counts.
type Config struct {
	TTFT   time.Duration // goal of requests whose client names none; 0: they have none
	TPOT   time.Duration // likewise, for each further token
	Share  float64       // of the requests that are to keep their goals, more than 0 and less than 1
	Window time.Duration // for which a request counts
}

// State is what a Watch has seen. It outlives reloads of the configuration.
type State struct {
	mu  sync.Mutex
	of  [kinds]window
	met [kinds][2]uint64 // requests that missed their goal, and that kept it
}

// kind is what a goal is of.
type kind int

const (
	ttft kind = iota
	tpot
	kinds
)

// String returns the kind as labels have it.
func (k kind) String() string { return [...]string{ttft: "ttft", tpot: "tpot"}[k] }

// Watch measures the headroom of online requests: those whose priority is not negative. It is an epp.PickObserver, epp.Stamper,
// epp.Observer and prometheus.Collector, and safe for concurrent use.
type Watch struct {
	cfg   Config
	state *State
	clock epp.Clock
}

// New returns a Watch that goes on with what a state has seen.
func New(cfg Config, state *State, clock epp.Clock) *Watch {
	state.mu.Lock()
	defer state.mu.Unlock()
	if width := cfg.Window / slots; state.of[ttft].width != width {
		for k := range state.of {
			state.of[k] = window{width: width}
		}
	}
	return &Watch{cfg: cfg, state: state, clock: clock}
}

// Picked implements epp.PickObserver: it notes the goals of an online request.
func (w *Watch) Picked(r *epp.Round, _ []epp.Candidate, d *epp.Decision) {
	if r.Request.Priority < 0 {
		return
	}
	first, further := r.Request.WantedTTFT(), r.Request.WantedTPOT()
	if first == 0 {
		first = w.cfg.TTFT
	}
	if further == 0 {
		further = w.cfg.TPOT
	}
	if first > 0 || further > 0 {
		d.Goals = &epp.Goals{TTFT: first, TPOT: further}
	}
}

// Stamp implements epp.Stamper. Where the first token has come with the headers of the answer, its time counts now. The answer to a request
// of negative priority gets the headroom of online requests.
func (w *Watch) Stamp(a *epp.Answer, set func(name, value string)) {
	switch d := a.Decision; {
	case d.Goals != nil:
		w.begun(d.Goals, a.TTFT)
	case d.Origin.Priority < 0:
		if least, ok := w.Headroom(); ok {
			set(pd.HeaderHeadroom, strconv.FormatFloat(least, 'f', 2, 64))
		}
	}
}

// begun counts the time to first token of a request, once.
func (w *Watch) begun(g *epp.Goals, took time.Duration) {
	if took > 0 && g.TTFT > 0 && g.Begin() {
		w.add(ttft, took, g.TTFT)
	}
}

// fewestTokens is how many tokens an answer must have for the time of one to count: what comes before and after them is in the time of
// the whole.
const fewestTokens = 8

// Observe implements epp.Observer. Requests that failed do not count: how long they would have taken is not known.
func (w *Watch) Observe(o *epp.Outcome) {
	if o.Decision == nil || o.Decision.Goals == nil || o.Result == nil || o.Result.End != pd.EndDone {
		return
	}
	g := o.Decision.Goals
	if took, ok := o.TTFT(); ok {
		w.begun(g, took)
	}
	if took, ok := o.Phases.Get(pd.PhaseDecode); ok && g.TPOT > 0 && o.Result.Completion >= fewestTokens {
		w.add(tpot, took/time.Duration(o.Result.Completion-1), g.TPOT)
	}
}

func (w *Watch) add(k kind, took, goal time.Duration) {
	s := w.state
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[k].add(w.clock.Now(), float64(took)/float64(goal))
	if took <= goal {
		s.met[k][1]++
	} else {
		s.met[k][0]++
	}
}

// Headroom returns the share of its goal that is left when a request ends than which only the share of Config may take longer: the lower of
// those of the time to first token and of further tokens. It is negative if the goal is missed. ok is false if no request of the window had a
// goal.
func (w *Watch) Headroom() (least float64, ok bool) {
	s := w.state
	s.mu.Lock()
	defer s.mu.Unlock()
	least = 1
	for k := range kinds {
		if ratio, known := s.of[k].quantile(w.clock.Now(), w.cfg.Share); known {
			least, ok = min(least, 1-ratio), true
		}
	}
	return least, ok
}

var (
	headroomDesc = prometheus.NewDesc("tandem_slo_headroom",
		"Share of its goal that is left when an online request ends than which only a few take longer: of the time to first token, or between tokens.", []string{"of"}, nil)
	goalsDesc = prometheus.NewDesc("tandem_slo_goals_total",
		"Online requests with a goal, by whether they kept it.", []string{"of", "result"}, nil)
)

// Describe implements prometheus.Collector.
func (w *Watch) Describe(out chan<- *prometheus.Desc) {
	out <- headroomDesc
	out <- goalsDesc
}

// Collect implements prometheus.Collector. There is no headroom while no request of the window had a goal.
func (w *Watch) Collect(out chan<- prometheus.Metric) {
	s := w.state
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range kinds {
		if ratio, ok := s.of[k].quantile(w.clock.Now(), w.cfg.Share); ok {
			out <- prometheus.MustNewConstMetric(headroomDesc, prometheus.GaugeValue, 1-ratio, k.String())
		}
		for i, result := range []string{"missed", "kept"} {
			out <- prometheus.MustNewConstMetric(goalsDesc, prometheus.CounterValue, float64(s.met[k][i]), k.String(), result)
		}
	}
}
