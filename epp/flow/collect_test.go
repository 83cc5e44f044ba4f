package flow_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/flow"
)

// scrape returns the series of a registry but histograms, as name{label="value",…} value.
func scrape(t *testing.T, registry *prometheus.Registry) (lines []string) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			if m.Histogram == nil {
				lines = append(lines, fmt.Sprintf("%s{%s} %v", family.GetName(), strings.Join(labels, ","), m.GetGauge().GetValue()+m.GetCounter().GetValue()))
			}
		}
	}
	return lines
}

func checkSeries(t *testing.T, when string, registry *prometheus.Registry, want ...string) {
	t.Helper()
	if got := scrape(t, registry); !slices.Equal(got, want) {
		t.Errorf("%s:\n%s\nwant\n%s", when, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestQueueMetrics holds what autoscalers and dashboards read of a queue.
func TestQueueMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry, p := prometheus.NewRegistry(), newFixed(3, "decode", "prefill")
		p.snapshot.Loads[0].At = time.Now()
		c := flow.New(flow.Settings{}, flow.OpenGate{}, flow.Options{Clock: epp.SystemClock, Metrics: flow.NewMetrics(registry, "guide")})
		registry.MustRegister(c)
		idle := []string{
			`llm_d_epp_flow_control_requests_total{inference_pool="guide",outcome="Dispatched",priority="0"} 0`,
			`tandem_queue_outcomes_total{outcome="dispatched",priority="0"} 0`,
		}
		checkSeries(t, "off", registry, idle...)
		c.Configure(flow.Settings{TTL: time.Minute, All: flow.Limits{Bytes: 8}, Other: flow.Band{Limits: flow.Limits{Requests: 4}}}, p.gate(perEndpoint{2, new(int)}))
		on := func(requests, bytes float64, flows ...string) (all []string) {
			all = append(all, fmt.Sprintf(`llm_d_epp_flow_control_capacity_utilization_requests{inference_pool="guide",priority="0"} %v`, requests/4),
				fmt.Sprintf(`llm_d_epp_flow_control_global_capacity_utilization_bytes{inference_pool="guide"} %v`, bytes/8),
				`llm_d_epp_flow_control_pool_saturation{inference_pool="guide",stage="decode"} 1.5`,
				`llm_d_epp_flow_control_pool_saturation{inference_pool="guide",stage="effective"} 1.5`,
				`llm_d_epp_flow_control_pool_saturation{inference_pool="guide",stage="prefill"} 1.5`)
			for _, unit := range []string{"bytes", "size"} {
				for _, f := range flows {
					all = append(all, fmt.Sprintf("llm_d_epp_flow_control_queue_%s{%s", unit, f))
				}
			}
			return append(all, idle[0], `tandem_pool_saturation{stage="decode"} 1.5`, `tandem_pool_saturation{stage="prefill"} 1.5`,
				fmt.Sprintf(`tandem_queue_bytes{priority="0"} %v`, bytes), idle[1], fmt.Sprintf(`tandem_queue_requests{priority="0"} %v`, requests))
		}
		labels := `fairness_id=%q,inference_pool="guide",model_name=%q,priority="0",target_model_name=%q} %v`
		checkSeries(t, "idle", registry, on(0, 0, fmt.Sprintf(labels, "default-flow", "", "", 0))...)

		q := &queue{Controller: c, gate: &slots{}, refused: map[string]error{}}
		for _, name := range []string{"a0", "a1", "b0"} {
			r := local(name, 0, name[:1])
			r.Model = "m"
			if name == "b0" {
				r.Asked = "alias"
			}
			q.send(t.Context(), r)
		}
		checkSeries(t, "full", registry, on(3, 3, fmt.Sprintf(labels, "a", "m", "m", 2), fmt.Sprintf(labels, "b", "alias", "m", 1))...)
		c.Close()
		q.sending.Wait()
		idle = []string{idle[0] + "\n" + `llm_d_epp_flow_control_requests_total{inference_pool="guide",outcome="RejectedOther",priority="0"} 3`,
			idle[1] + "\n" + `tandem_queue_outcomes_total{outcome="draining",priority="0"} 3`}
		want := on(0, 0, fmt.Sprintf(labels, "a", "m", "m", 0), fmt.Sprintf(labels, "b", "alias", "m", 0))
		checkSeries(t, "drained", registry, strings.Split(strings.Join(want, "\n"), "\n")...)
	})
}

// TestRunning: a request counts from its pick to its end, and there are not more series than a scrape can take.
func TestRunning(t *testing.T) {
	registry, running, p := prometheus.NewRegistry(), flow.NewRunning(epp.SystemClock), newFixed(0, "decode")
	registry.MustRegister(running)
	series := `llm_d_epp_request_running{fairness_id=%q,model_name=%q,priority=%q,target_model_name=%q} %v`
	checkSeries(t, "at first", registry, fmt.Sprintf(series, "default-flow", "", "0", "", 0))
	pick := func(o epp.Origin) *epp.Reservation {
		d := &epp.Decision{Origin: o, Reservation: epp.ReserveAnyway(epp.Claim{Endpoint: p.snapshot.Endpoints[0], Add: epp.InFlight{Requests: 1}})}
		running.Picked(nil, nil, d)
		return d.Reservation
	}
	first := pick(epp.Origin{Flow: "a", Model: "alias", Target: "m", Priority: -1})
	second := pick(epp.Origin{Flow: "a", Model: "alias", Target: "m", Priority: -1})
	third := pick(epp.Origin{Flow: "b", Model: "m", Target: "m", Priority: -1})
	checkSeries(t, "without names", registry, fmt.Sprintf(series, "default-flow", "", "-1", "", 3))
	third.End()
	running.NameClients(true)
	none := fmt.Sprintf(series, "b", "m", "-1", "m", 0)
	checkSeries(t, "two run", registry, fmt.Sprintf(series, "a", "alias", "-1", "m", 2), none)
	first.End()
	first.End()
	checkSeries(t, "one has ended", registry, fmt.Sprintf(series, "a", "alias", "-1", "m", 1), none)
	second.End()
	checkSeries(t, "all have ended", registry, fmt.Sprintf(series, "a", "alias", "-1", "m", 0), none)
	for i := range 2000 {
		pick(epp.Origin{Flow: fmt.Sprint(i), Model: "m", Target: "m"})
	}
	if got, rest := scrape(t, registry), fmt.Sprintf(series, "other", "other", "0", "other", 1002); len(got) != 1001 || !slices.Contains(got, rest) {
		t.Errorf("%d series, and not %s", len(got), rest)
	}
}
