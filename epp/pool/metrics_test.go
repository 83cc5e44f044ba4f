package pool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		roles := map[string]string{"10.0.0.1:8000": "decode", "10.0.0.2:8000": "prefill", "10.0.0.3:8000": "decode"}
		var specs []epp.Spec
		for _, addr := range slices.Sorted(maps.Keys(roles)) {
			specs = append(specs, withLabel(specOf("e"+addr, addr), pd.RoleLabel, roles[addr]))
		}
		reg, discovery := prometheus.NewPedanticRegistry(), ofPool(specs...)
		p, e := withEngines(t, Options{Metrics: reg}, discovery, func(_ context.Context, host string) (string, error) {
			if host == "10.0.0.3:8000" {
				return "", errors.New("connection refused")
			}
			return idlePage, nil
		})
		start(t, p)
		time.Sleep(10 * time.Second)
		inFlight(p.Snapshot().Endpoints[0])
		inFlight(p.Snapshot().Endpoints[1])
		e.behave(func(ctx context.Context, host string) (string, error) {
			if host != "10.0.0.1:8000" {
				return hang(ctx, host)
			}
			return idlePage, nil
		})
		time.Sleep(10 * time.Second)
		discovery <- append(slices.Clone(specs[:1]), specs[2])
		synctest.Wait()
		expectMetrics(t, reg, map[string]float64{
			`tandem_endpoints{role="decode",state="fresh"}`:   1,
			`tandem_endpoints{role="decode",state="unread"}`:  1,
			`tandem_endpoints{role="prefill",state="left"}`:   1,
			`tandem_endpoints{role="prefill",state="stale"}`:  0,
			`tandem_inflight{component="epp",role="decode"}`:  1,
			`tandem_inflight{component="epp",role="prefill"}`: 1,
			`tandem_scrapes_total{result="no-values"}`:        0,
			`some tandem_scrapes_total{result="ok"}`:          1,
			`some tandem_scrapes_total{result="unreachable"}`: 1,
			`some tandem_scrapes_total{result="timeout"}`:     1,
			`some tandem_scrape_age_seconds{}`:                1,
			`some tandem_scrape_seconds{}`:                    1,
		})
		discovery <- specs
		synctest.Wait()
		expectMetrics(t, reg, map[string]float64{
			`tandem_endpoints{role="prefill",state="stale"}`: 1,
			`tandem_endpoints{role="prefill",state="left"}`:  0,
			`some tandem_scrape_oldest_seconds{}`:            1,
		})
	})
}

// An empty pool shows a zero for what every pool should have: an alert on it could not fire on nothing.
func TestMetricsOfAnEmptyPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		p, _ := withEngines(t, Options{Metrics: reg}, ofPool(), nil)
		start(t, p)
		synctest.Wait()
		got := gather(t, reg)
		for _, role := range []string{"prefill", "decode"} {
			for _, name := range []string{
				fmt.Sprintf(`tandem_inflight{component="epp",role=%q}`, role),
				fmt.Sprintf(`tandem_endpoints{role=%q,state="fresh"}`, role),
				fmt.Sprintf(`tandem_endpoints{role=%q,state="stale"}`, role),
				fmt.Sprintf(`tandem_endpoints{role=%q,state="unread"}`, role),
			} {
				if v, ok := got[name]; !ok || v != 0 {
					t.Errorf("%s is there: %t, and is %v", name, ok, v)
				}
			}
		}
	})
}

// expectMetrics compares gauges and counters, and the counts of histograms; "some " demands at least as many.
func expectMetrics(t *testing.T, reg *prometheus.Registry, want map[string]float64) {
	t.Helper()
	got := gather(t, reg)
	for name, n := range want {
		bare, atLeast := strings.CutPrefix(name, "some ")
		if v := got[bare]; v != n && (!atLeast || v < n) {
			t.Errorf("%s is %v, want %v; all: %v", name, v, n, got)
		}
	}
}

// gather returns the values of gauges and counters, and the counts of histograms.
func gather(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			got[fmt.Sprintf("%s{%s}", f.GetName(), strings.Join(labels, ","))] =
				m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return got
}
