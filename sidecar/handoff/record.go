package handoff

import (
	"cmp"
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/recent"
)

// Record is what happened to one request, for operators. It is kept for every request, so it holds values as they are, and
// MarshalJSON formats them. Its memory is bounded.
type Record struct {
	id       string
	began    time.Time
	api      pd.API
	route    recordedRoute
	decision pd.Result
	decode   net.Addr // nil: the request did not come over a connection
	engine   string   // the local engine
	prefill  string
	notable  string
	status   int
	state    State
	end      pd.End
	usage    body.Usage
	phases   pd.Phases
	failure  string
	legs     []recent.Leg
	legsLeft int
	memory   [2]recent.Leg // of legs: most requests have no more
	of       *Record       // of the request of which this one's is a part; nil: it is no part

	mu       sync.Mutex // guards releases, which may end after their request
	releases []recent.Release
}

// recordedRoute is the part of the route that is recorded: the route itself refers to the whole plan.
type recordedRoute struct {
	mode    pd.Mode
	planned string
	planID  [16]byte // hex digits; a zero value says that there is no plan. As a string it would keep the whole header in memory
}

func (r *recordedRoute) id() string { return strings.TrimRight(string(r.planID[:]), "\x00") }

const (
	// maxRecordedLegs is the most legs of one request that are recorded, and maxRecordedReleases the most releases.
	maxRecordedLegs, maxRecordedReleases = 16, 16
	// maxRecordedError is the most bytes of an error.
	maxRecordedError = 300
)

// newRecord returns the record of a request that began at some time.
func newRecord(id string, began time.Time) *Record {
	r := &Record{id: id, began: began}
	r.legs = r.memory[:0]
	return r
}

// Is implements recent.Entry.
func (r *Record) Is(id string) bool { return r.id == id || r.route.id() == id }

// Size implements recent.Entry. It leaves space for one release.
func (r *Record) Size() int {
	const fixed, leg, release = 800, 80, 80 + maxRecordedError
	n := fixed + len(r.id) + len(r.prefill) + len(r.failure) + cap(r.legs)*leg + release
	for i := range r.legs {
		n += len(r.legs[i].Error)
	}
	return n
}

// MarshalJSON implements json.Marshaler. The result is a recent.Served.
func (r *Record) MarshalJSON() ([]byte, error) {
	served := recent.Served{ID: r.id, Began: r.began, API: r.api.String(), Mode: r.route.mode.String(), Planned: r.route.planned,
		PlanID: r.route.id(), Decision: r.decision.String(), Decode: podAddress(r.decode, r.engine), Prefill: r.prefill, Notable: r.notable,
		Status: r.status, State: r.state.String(), End: r.end.String(),
		Tokens: recent.Tokens{Prompt: r.usage.Prompt, Cached: r.usage.Cached, Completion: r.usage.Completion},
		Millis: millis(r.phases.Sum()), Timing: string(r.phases.AppendTiming(nil, pd.PhaseEPP)), Error: r.failure, Legs: r.legs, LegsLeft: r.legsLeft}
	r.mu.Lock()
	defer r.mu.Unlock()
	served.Releases = r.releases
	return json.Marshal(served)
}

// leg adds a leg. A nil Record takes none, as with the methods below.
func (r *Record) leg(leg, engine string, sent, ended time.Time, status int, err error) {
	switch {
	case r == nil:
	case len(r.legs) == maxRecordedLegs:
		r.legsLeft++
	default:
		r.legs = append(r.legs, recent.Leg{Leg: leg, Engine: engine, At: millis(sent.Sub(r.began)), Millis: millis(ended.Sub(sent)),
			Status: status, Error: errorText(err)})
	}
}

// addLegs adds the legs of a part of the request, in the order in which they were sent.
func (r *Record) addLegs(of *Record) {
	if r == nil {
		return
	}
	r.legs = append(r.legs, of.legs...)
	slices.SortStableFunc(r.legs, func(a, b recent.Leg) int { return cmp.Compare(a.At, b.At) })
	kept := min(len(r.legs), maxRecordedLegs)
	r.legsLeft += len(r.legs) - kept + of.legsLeft
	r.legs = slices.Clip(r.legs[:kept])
}

// legFailed adds to the last leg why it could not be used after its headers had come.
func (r *Record) legFailed(err error) {
	if r != nil && len(r.legs) > 0 && r.legs[len(r.legs)-1].Error == "" {
		r.legs[len(r.legs)-1].Error = errorText(err)
	}
}

// release adds the end of a release, which may come after the request's.
func (r *Record) release(way, result string, err error) {
	if r == nil {
		return
	}
	if r.of != nil {
		r = r.of
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.releases) < maxRecordedReleases {
		r.releases = append(r.releases, recent.Release{Way: way, Result: result, At: millis(time.Since(r.began)), Error: errorText(err)})
	}
}

func millis(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond)) / float64(time.Millisecond)
}

// errorText returns the beginning of an error's text.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	return strings.ToValidUTF8(text[:min(len(text), maxRecordedError)], "")
}

// Pods returns the pods that served the request.
func (x *Exchange) Pods() pd.Pods {
	p := pd.Pods{Decode: x.pod()}
	if x.Decision.Verdict == pd.Remote {
		p.Prefill = x.target
	}
	return p
}

// pod returns this pod's address as the gateway reached it: the picker knows it by the same one.
func (x *Exchange) pod() string { return podAddress(x.localAddr(), x.legs.localEngine.address) }

// localAddr returns the address that the request came to; nil if it did not come over a connection.
func (x *Exchange) localAddr() net.Addr {
	at, _ := x.request.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return at
}

// podAddress returns the address of a pod, or of its engine if the pod's is not known.
func podAddress(at net.Addr, engine string) string {
	if at == nil {
		return engine
	}
	return at.String()
}

// tellPods adds pd.HeaderPods to the answer, if the operator wants that.
func (x *Exchange) tellPods() {
	if x.legs.TellPods {
		x.Writer.Header()[keyPods] = []string{x.Pods().String()}
	}
}

// keyPods is pd.HeaderPods in net/http's form.
var keyPods = http.CanonicalHeaderKey(pd.HeaderPods)

// Record completes the record of an exchange that has ended, and returns it; nil if none is kept. notable is why it is worth a
// look.
func (x *Exchange) Record(phases *pd.Phases, notable string) *Record {
	r := x.record
	if r == nil {
		return nil
	}
	r.api, r.route.mode, r.route.planned = x.API, x.Route.Mode, x.Route.Planned()
	if x.Route.Plan != nil {
		copy(r.route.planID[:], x.Route.Plan.ID)
	}
	r.decision, r.decode, r.engine, r.prefill, r.notable = x.Decision, x.localAddr(), x.legs.localEngine.address, x.target, notable
	r.status, r.state, r.end, r.usage, r.phases = x.Status, x.state, x.Client.End, x.Usage, *phases
	r.decision.Reason = constant(r.decision)
	r.failure = errorText(x.Failure)
	return r
}

// constant returns the reason of a result as a constant: that of a plan is a part of a header, which it would keep in memory.
func constant(d pd.Result) pd.Reason {
	if d.Verdict != pd.Refused { // refusals have no other reasons
		for _, known := range pd.Reasons(d.Verdict) {
			if known == d.Reason {
				return known
			}
		}
	}
	return d.Reason
}
