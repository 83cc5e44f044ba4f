package replica

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	connectedDesc = prometheus.NewDesc("tandem_replicas_connected", "Other replicas of the picker whose load in flight counts.", nil, nil)
	requestsDesc  = prometheus.NewDesc("tandem_replicas_inflight", "Requests in flight that other replicas of the picker have sent.", nil, nil)
	ageDesc       = prometheus.NewDesc("tandem_replicas_age_seconds", "Time since the replica that has told nothing for longest told something.", nil, nil)
	lostDesc      = prometheus.NewDesc("tandem_replicas_lost_total", "Connections to other replicas that have ended by themselves.", nil, nil)
)

// Describe implements prometheus.Collector.
func (x *Exchange) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{connectedDesc, requestsDesc, ageDesc, lostDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (x *Exchange) Collect(ch chan<- prometheus.Metric) {
	states, lost := x.States()
	requests, age := 0, 0.0
	for _, s := range states {
		requests += s.Requests
		age = max(age, s.Age)
	}
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	gauge(connectedDesc, float64(len(states)))
	gauge(requestsDesc, float64(requests))
	gauge(ageDesc, age)
	ch <- prometheus.MustNewConstMetric(lostDesc, prometheus.CounterValue, float64(lost))
}

// State is what is known of another replica.
type State struct {
	Address   string  `json:"address"`
	Picker    string  `json:"picker"`      // an id of its process
	Age       float64 `json:"age_seconds"` // since it told something
	Endpoints int     `json:"endpoints"`   // with requests of it
	Requests  int     `json:"inflight_requests"`
	Tokens    int     `json:"inflight_tokens"` // of prompts still to be computed
	Unknown   int     `json:"unknown_endpoints"`
}

// States returns the other replicas that count, by their addresses, and how many connections have ended by themselves.
func (x *Exchange) States() (all []State, lost uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	for _, r := range x.replicas {
		s := State{Address: r.address, Picker: r.id, Age: now.Sub(r.heard).Seconds(), Endpoints: len(r.charged), Unknown: len(r.told) - len(r.charged)}
		for _, c := range r.charged {
			s.Requests += c.load.Requests
			s.Tokens += c.load.Tokens
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b State) int { return cmp.Compare(a.Address, b.Address) })
	return all, x.lost
}
