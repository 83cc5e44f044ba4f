package flow

import (
	"cmp"
	"slices"
	"time"
)

// View is what waits, for people and for programs.
type View struct {
	Requests int        `json:"requests"`
	Bytes    int64      `json:"bytes"`
	Pending  [2]int64   `json:"pending"` // let pass, and not picked for yet: without and with the stage that splits requests
	Every    float64    `json:"seconds_between_dispatches"`
	Bands    []BandView `json:"bands"` // of descending priority
}

// BandView is what waits in one band.
type BandView struct {
	Priority  int        `json:"priority"`
	Requests  int        `json:"requests"`
	Bytes     int64      `json:"bytes"`
	Oldest    float64    `json:"oldest_seconds"` // how long the request that came first has waited
	Flows     []FlowView `json:"flows"`          // those with most requests first
	MoreFlows int        `json:"more_flows"`     // with requests, that Flows does not have
}

// FlowView is what waits of one flow.
type FlowView struct {
	ID       string `json:"id"`
	Requests int    `json:"requests"`
	Split    int    `json:"split"` // of these, requests that may need the stage that splits requests
	Bytes    int64  `json:"bytes"`
}

// flowsShown is how many flows of a band a View has.
const flowsShown = 100

// View returns what waits now.
func (c *Controller) View() View {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.opt.Clock.Now()
	v := View{Requests: int(c.waiting.Load()), Bytes: c.bytes, Every: c.departed.every.Seconds(), Bands: []BandView{}}
	for l := range c.pending {
		v.Pending[l] = c.pending[l].requests.Load()
	}
	for _, b := range c.bands {
		if b.requests > 0 {
			v.Bands = append(v.Bands, b.view(now))
		}
	}
	return v
}

func (b *band) view(now time.Time) BandView {
	v := BandView{Priority: b.priority, Requests: b.requests, Bytes: b.bytes, Oldest: now.Sub(b.oldest.at).Seconds()}
	for _, f := range b.flows {
		if f.requests > 0 {
			v.Flows = append(v.Flows, FlowView{f.id, f.requests, f.lines[laneSplit].items.len(), f.bytes})
		}
	}
	slices.SortFunc(v.Flows, func(x, y FlowView) int { return cmp.Or(y.Requests-x.Requests, cmp.Compare(x.ID, y.ID)) })
	if more := len(v.Flows) - flowsShown; more > 0 {
		v.Flows, v.MoreFlows = v.Flows[:flowsShown], more
	}
	return v
}
