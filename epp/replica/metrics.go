package replica

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var (
	connectedDesc = prometheus.NewDesc("tandem_replicas_connected", "Other replicas of the picker whose load in flight counts.", nil, nil)
	requestsDesc  = prometheus.NewDesc("tandem_replicas_inflight", "Requests in flight that other replicas of the picker have sent.", nil, nil)
	ageDesc       = prometheus.NewDesc("tandem_replicas_age_seconds", "Time since the replica that has told nothing for longest told something.", nil, nil)
	lostDesc      = prometheus.NewDesc("tandem_replicas_lost_total", "Connections to other replicas that have ended by themselves.", nil, nil)
	waitingDesc   = prometheus.NewDesc("tandem_replicas_waiting", "Requests that wait in the queues of other replicas of the picker.", nil, nil)
	downDesc      = prometheus.NewDesc("tandem_replicas_unreachable", "Endpoints that any other replica of the picker finds unreachable.", nil, nil)
	delayDesc     = prometheus.NewDesc("tandem_replicas_prompt_delay_seconds", "Time from the pick of a prompt at another replica until this one was told of it: that of the slowest replica, when it last told of any.", nil, nil)
	promptsDesc   = prometheus.NewDesc("tandem_replicas_prompts_total", "Prompts for which other replicas of the picker have picked (learned, unknown), and of which they were not told in time (lost).", []string{"result"}, nil)
)

// Describe implements prometheus.Collector.
func (x *Exchange) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{connectedDesc, requestsDesc, ageDesc, lostDesc, waitingDesc, downDesc, delayDesc, promptsDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (x *Exchange) Collect(ch chan<- prometheus.Metric) {
	states, lost := x.States()
	requests, waiting, age, delay := 0, 0, 0.0, 0.0
	for i := range states {
		s := &states[i]
		requests += s.Requests
		waiting += s.Waiting
		age, delay = max(age, s.Age), max(delay, s.Delay)
	}
	x.mu.Lock()
	down := map[string]bool{}
	for _, r := range x.replicas {
		maps.Copy(down, r.down)
	}
	learned, unknown := x.learned, x.unknown
	x.mu.Unlock()
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	gauge(connectedDesc, float64(len(states)))
	gauge(requestsDesc, float64(requests))
	gauge(ageDesc, age)
	gauge(waitingDesc, float64(waiting))
	gauge(downDesc, float64(len(down)))
	gauge(delayDesc, delay)
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	counter(lostDesc, lost)
	counter(promptsDesc, learned, "learned")
	counter(promptsDesc, unknown, "unknown")
	counter(promptsDesc, x.untold.Load(), "lost")
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
	// Unreachable are the endpoints that it finds so.
	Unreachable []string `json:"unreachable_endpoints,omitempty"`
	Waiting     int      `json:"waiting_requests"`
	// Delay is how long a prompt has waited at it until this picker was told, lately (seconds).
	Delay float64 `json:"prompt_delay_seconds"`
}

// States returns the other replicas that count, by their addresses, and how many connections have ended by themselves.
func (x *Exchange) States() (all []State, lost uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	for _, r := range x.replicas {
		s := State{Address: r.address, Picker: r.id, Age: now.Sub(r.heard).Seconds(), Endpoints: len(r.charged), Unknown: len(r.told) - len(r.charged),
			Unreachable: slices.Sorted(maps.Keys(r.down)), Delay: r.waited.Seconds()}
		for _, w := range r.waiting {
			s.Waiting += w.Requests
		}
		for _, c := range r.charged {
			s.Requests += c.load.Requests
			s.Tokens += c.load.Tokens
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b State) int { return cmp.Compare(a.Address, b.Address) })
	return all, x.lost
}
