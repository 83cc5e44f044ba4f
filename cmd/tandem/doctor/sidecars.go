package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/promtext"
	"github.com/tandem-serving/tandem/pd"
)

// operated is a sidecar, reached by its metrics port.
type operated struct {
	name string
	base string // URL
	ask  asker

	page    promtext.Page
	pageErr error
	asked   time.Time // time of the request
}

func (s *operated) String() string { return s.name }

// defaultSidecarMetrics is the default of the sidecar's --metrics-port.
const defaultSidecarMetrics = 9095

// addSidecars adds the metrics ports of sidecars: those in the flags, else those in pods.
func (f *fleet) addSidecars() {
	for _, address := range f.parts.Sidecars {
		f.sidecars = append(f.sidecars, &operated{name: address, base: "http://" + address, ask: asker{client: f.direct.http}})
	}
	if len(f.sidecars) > 0 {
		return
	}
	for _, t := range f.targets {
		if t.pod == nil || !t.role.Has(pd.RoleDecode) {
			continue
		}
		if port, found := sidecarMetrics(t.pod, t.addr.Port()); found {
			base := f.reach.url(t, "http", port, "")
			f.sidecars = append(f.sidecars, &operated{name: t.name, base: base, ask: asker{client: f.reach.client()}})
		}
	}
}

// sidecarMetrics returns the metrics port of the sidecar that serves at a port of the pod. llm-d's sidecar has the same
// flag, but no metrics page there.
func sidecarMetrics(pod *corev1.Pod, serves uint16) (port uint16, found bool) {
	for _, c := range containers(pod) {
		at := numbers(cmp.Or(argumentOf(c, "port"), "8000"))
		if argumentOf(c, "kv-connector", "connector") == "" || len(at) != 1 || at[0] != serves {
			continue
		}
		if given := numbers(argumentOf(c, "metrics-port")); len(given) == 1 {
			return given[0], true
		}
		return defaultSidecarMetrics, true
	}
	return 0, false
}

// meetSidecar reads a sidecar's metrics page.
func (f *fleet) meetSidecar(ctx context.Context, s *operated) {
	ctx, cancel := context.WithTimeout(ctx, f.how.Timeout)
	defer cancel()
	s.page, s.pageErr = s.ask.metrics(ctx, s.base)
	s.asked = time.Now()
}

// age returns how long the process has run, or 0 if its page does not show it.
func (s *operated) age() time.Duration {
	began, known := s.page.Sum("process_start_time_seconds")
	if !known {
		return 0
	}
	return s.asked.Sub(time.Unix(int64(began), 0))
}

// hasKeeper reports whether the sidecar has a keeper, in whatever state.
func (s *operated) hasKeeper() bool { return s.page.Has(keeperUp) }

// tried counts tries, and those that failed or may have failed.
type tried struct{ all, failed float64 }

// tries adds up a counter with the label result over the series with a label's value; "" stands for all series.
func (s *operated) tries(metric, label, value string) (n tried) {
	for _, series := range s.page {
		if series.Name != metric || label != "" && series.Labels[label] != value {
			continue
		}
		n.all += series.Value
		if series.Labels["result"] != "ok" {
			n.failed += series.Value
		}
	}
	return n
}

// keeperUp is the metric that only sidecars with a keeper have. A keeper is a sidecar's NIXL agent process: it renews and
// releases hand-offs at prefill engines.
const keeperUp = "tandem_keeper_up"

// keepers returns the sidecars that have a keeper, among those whose metrics page could be read.
func (f *fleet) keepers() []*operated {
	return slices.DeleteFunc(slices.Clone(f.sidecars), func(s *operated) bool { return s.pageErr != nil || !s.hasKeeper() })
}

// checkKeeper finds nothing if no sidecar has a keeper: it is an option.
func checkKeeper(ctx context.Context, f *fleet) finding {
	if len(f.sidecars) == 0 {
		return finding{verdict: unknown, seen: "the sidecars' metrics ports are unknown", do: "name them with --sidecar-metrics"}
	}
	wanted := len(f.keepers()) > 0
	return each(ctx, f.sidecars, f.how.Timeout, func(_ context.Context, s *operated) finding {
		switch {
		case s.pageErr != nil:
			return finding{verdict: unknown, seen: "the sidecar's metrics port: " + s.pageErr.Error()}
		case s.hasKeeper():
			return s.keeper()
		case wanted:
			return finding{verdict: warn, seen: "has no keeper, but others have one", do: "give all sidecars the same --keeper"}
		}
		return finding{}
	})
}

const (
	// shortLife is a mean lifetime of keepers that indicates a repeating crash. It is well above the half minute that a
	// sidecar waits before a restart.
	shortLife = 10 * time.Minute
	// fewDeaths is how many deaths are acceptable, however soon they came.
	fewDeaths = 3
	// longLife is a mean lifetime that needs no explanation.
	longLife = 24 * time.Hour
)

// keeper reports whether the keeper runs and keeps running.
func (s *operated) keeper() finding {
	up, _ := s.page.Sum(keeperUp)
	starts, _ := s.page.Sum("tandem_keeper_starts_total")
	deaths, age := max(starts-1, 0), s.age()
	life := time.Duration(float64(age) / max(deaths, 1))
	seen := fmt.Sprintf("started %.0f times in %v", starts, roughly(age))
	const died = "the sidecar's log has the cause of death; messages of prefill pods can be the cause, and too little memory"
	switch {
	case up == 0 && deaths == 0:
		return finding{verdict: fail, seen: "it is not running"}
	case up == 0:
		return finding{verdict: fail, seen: "it is not running, and was " + seen}
	case deaths >= fewDeaths && life < shortLife:
		return finding{verdict: fail, seen: seen, do: died}
	case deaths > 0 && life < longLife:
		return finding{verdict: warn, seen: seen, do: died}
	}
	return finding{verdict: ok, seen: "up"}
}

// roughly rounds a duration for display.
func roughly(d time.Duration) time.Duration {
	if d > 10*time.Minute {
		return d.Round(time.Minute)
	}
	return d.Round(time.Second)
}

// checkLeases leaves out keepers that are not running, which have a check of their own.
func checkLeases(ctx context.Context, f *fleet) finding {
	up := slices.DeleteFunc(f.keepers(), func(s *operated) bool { up, _ := s.page.Sum(keeperUp); return up == 0 })
	if len(up) == 0 {
		return finding{}
	}
	return each(ctx, up, f.how.Timeout, func(_ context.Context, s *operated) finding { return s.leases() })
}

// duties are the tasks of a keeper. Each needs the one before it.
var duties = []struct {
	metric, label, value string
	none, some           string // text if all, or some, of the tries failed
	do                   string // "" stands for the check's own advice
}{
	{"tandem_lease_connects_total", "", "",
		"connecting to a side channel of a prefill engine failed all %.0f times", "connecting to a side channel of a prefill engine failed %.0f of %.0f times", ""},
	{"tandem_lease_heartbeats_total", "", "",
		"no heartbeat arrived, of %.0f", "%.0f of %.0f heartbeats did not arrive", notArrived},
	{"tandem_kv_release_total", "way", "nixl",
		"no release arrived, of %.0f", "%.0f of %.0f releases did not arrive", notArrived},
}

// notArrived is the advice where side channels can be reached, but notifications over NIXL do not arrive.
const notArrived = "let decode pods reach all TCP ports of prefill pods (NetworkPolicy), and have keeper and engines take one " +
	"network: UCX_NET_DEVICES, and tcp in UCX_TLS"

// leases reports whether the keeper's notifications reach prefill engines. A failure now and then means that an engine has
// ended.
func (s *operated) leases() finding {
	found := finding{verdict: ok, seen: "no hand-off was renewed or released yet"}
	for _, d := range duties {
		n := s.tries(d.metric, d.label, d.value)
		switch {
		case n.all > 0 && n.failed == n.all:
			return finding{verdict: fail, seen: fmt.Sprintf(d.none, n.all), do: d.do}
		case n.failed*10 > n.all && found.verdict == ok:
			found = finding{verdict: warn, seen: fmt.Sprintf(d.some, n.failed, n.all), do: d.do}
		case n.all > 0 && found.verdict == ok:
			found.seen = "prefill engines receive renewals and releases"
		}
	}
	return found
}
