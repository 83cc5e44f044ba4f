package main

import (
	"net/http"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/recent"
)

// recentBytes bounds the memory of recent requests, for each of the two kinds (bytes).
const recentBytes = 4 << 20

// requests keeps what the picker knows of the latest requests, for the admin port. It is an epp.Observer.
type requests struct{ kept *recent.Store[*recent.Picked] }

// newRequests keeps at most count requests that are worth a look, and as many others.
func newRequests(count int) requests {
	return requests{recent.New[*recent.Picked](count, recentBytes)}
}

// Observe implements epp.Observer.
func (r requests) Observe(o *epp.Outcome) {
	if r.kept != nil {
		r.kept.Add(picked(o, time.Now()), o.Status >= http.StatusInternalServerError)
	}
}

// picked returns what is kept of an outcome. It refers to no endpoint and to no header, so that both can be freed.
func picked(o *epp.Outcome, ended time.Time) *recent.Picked {
	p := &recent.Picked{Ended: ended, API: o.API.String(), PlanID: strings.Clone(o.Plan.ID), Strict: o.Plan.Strict, PickMs: millis(o.Plan.EPP),
		Status: o.Status, Served: strings.Clone(o.Served), Millis: millis(o.Duration), Own: o.Immediate}
	if pd.WellFormedRequestID(o.Request) {
		p.ID = strings.Clone(o.Request)
	}
	if o.Plan.ID != "" {
		p.Decision, p.Reason = o.Plan.Verdict.String(), strings.Clone(string(o.Plan.Reason))
	}
	if o.Happened != nil {
		p.Happened = o.Happened.String()
	}
	if d := o.Decision; d != nil {
		p.Decision, p.Reason, p.Strict, p.Tokens, p.Cached = d.Verdict.String(), string(d.Reason), d.Strict, d.Tokens, d.Cached
		for i := range d.Picks {
			p.Picks = append(p.Picks, pickOf(&d.Picks[i]))
		}
		for _, c := range d.Costs {
			p.Costs = append(p.Costs, recent.Cost{Verdict: c.Verdict.String(), Endpoint: c.Endpoint.Address, Seconds: c.Time.Seconds()})
		}
	}
	if o.Immediate && o.Happened != nil {
		p.Decision, p.Reason = o.Happened.Verdict.String(), string(o.Happened.Reason)
	}
	return p
}

func pickOf(s *epp.StagePick) recent.Pick {
	p := recent.Pick{Stage: string(s.Row.Stage), Endpoints: make([]string, len(s.Endpoints)), Names: make([]string, len(s.Endpoints))}
	for i, e := range s.Endpoints {
		p.Endpoints[i], p.Names[i] = e.Address, e.Name
	}
	return p
}

func millis(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond)) / float64(time.Millisecond)
}
