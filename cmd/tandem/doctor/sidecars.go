package doctor

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/promtext"
	"github.com/tandem-serving/tandem/pd"
)

// operated is a sidecar by its metrics port, which is another than the one that requests come to.
type operated struct {
	name string
	base string // URL
	ask  asker

	page    promtext.Page
	pageErr error
	asked   time.Time // when
}

func (s *operated) String() string { return s.name }

// defaultSidecarMetrics is the sidecar's --metrics-port.
const defaultSidecarMetrics = 9095

// addSidecars names the metrics ports of sidecars: those of the flags, else those that pods show.
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

// sidecarMetrics is the metrics port of the sidecar that serves at a port of the pod. One of llm-d's has its flags, and tells
// no metrics there.
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

// meetSidecar reads a sidecar's own page.
func (f *fleet) meetSidecar(ctx context.Context, s *operated) {
	ctx, cancel := context.WithTimeout(ctx, f.how.Timeout)
	defer cancel()
	s.page, s.pageErr = s.ask.metrics(ctx, s.base)
	s.asked = time.Now()
}

// age is how long the process has run, 0 where its page does not say.
func (s *operated) age() time.Duration {
	began, known := s.page.Sum("process_start_time_seconds")
	if !known {
		return 0
	}
	return s.asked.Sub(time.Unix(int64(began), 0))
}

// hasKeeper tells whether it has a keeper, in whatever state.
func (s *operated) hasKeeper() bool { return s.page.Has(keeperUp) }

// tried is how often something was tried, and how often in vain, or so that nobody knows.
type tried struct{ all, failed float64 }

// tries adds up a counter with the label result, of the series that have a label's value; "" of all.
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
