package doctor

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// keeperUp is the metric that only sidecars with a keeper have.
const keeperUp = "tandem_keeper_up"

// keepers are the sidecars that have one, among those whose page could be read.
func (f *fleet) keepers() []*operated {
	return slices.DeleteFunc(slices.Clone(f.sidecars), func(s *operated) bool { return s.pageErr != nil || !s.hasKeeper() })
}

// checkKeeper finds nothing where no sidecar has a keeper: it is an option.
func checkKeeper(ctx context.Context, f *fleet) finding {
	if len(f.sidecars) == 0 {
		return finding{verdict: unknown, seen: "the sidecars' metrics ports are not known", do: "name them with --sidecar-metrics"}
	}
	wanted := len(f.keepers()) > 0
	return each(ctx, f.sidecars, f.how.Timeout, func(_ context.Context, s *operated) finding {
		switch {
		case s.pageErr != nil:
			return finding{verdict: unknown, seen: "the sidecar's metrics port: " + s.pageErr.Error()}
		case s.hasKeeper():
			return s.keeper()
		case wanted:
			return finding{verdict: warn, seen: "has none, and others do", do: "give all sidecars the same --keeper"}
		}
		return finding{}
	})
}

const (
	// shortLife is a mean life of keepers that something ends over and over: it is well above the half minute that a sidecar
	// waits before it starts one again.
	shortLife = 10 * time.Minute
	// fewDeaths are no habit, however soon they came.
	fewDeaths = 3
	// longLife is a mean life of which nobody has to ask what ends it.
	longLife = 24 * time.Hour
)

// keeper tells whether it is there to stay.
func (s *operated) keeper() finding {
	up, _ := s.page.Sum(keeperUp)
	starts, _ := s.page.Sum("tandem_keeper_starts_total")
	deaths, age := max(starts-1, 0), s.age()
	life := time.Duration(float64(age) / max(deaths, 1))
	seen := fmt.Sprintf("started %.0f times in %v", starts, roughly(age))
	const died = "the sidecar's log says what it died of; what prefill pods send it can do that, and so can too little memory"
	switch {
	case up == 0 && deaths == 0:
		return finding{verdict: fail, seen: "it is not up"}
	case up == 0:
		return finding{verdict: fail, seen: "it is not up, and was " + seen}
	case deaths >= fewDeaths && life < shortLife:
		return finding{verdict: fail, seen: seen, do: died}
	case deaths > 0 && life < longLife:
		return finding{verdict: warn, seen: seen, do: died}
	}
	return finding{verdict: ok, seen: "up"}
}

// roughly rounds what nobody needs to the second.
func roughly(d time.Duration) time.Duration {
	if d > 10*time.Minute {
		return d.Round(time.Minute)
	}
	return d.Round(time.Second)
}

// checkLeases leaves out keepers that are not up, which have a check.
func checkLeases(ctx context.Context, f *fleet) finding {
	up := slices.DeleteFunc(f.keepers(), func(s *operated) bool { up, _ := s.page.Sum(keeperUp); return up == 0 })
	if len(up) == 0 {
		return finding{}
	}
	return each(ctx, up, f.how.Timeout, func(_ context.Context, s *operated) finding { return s.leases() })
}

// duties are what a keeper is for, in the order in which each needs the one before.
var duties = []struct {
	metric, label, value string
	none, some           string // of the tries failed
	do                   string // "" is the check's own advice
}{
	{"tandem_lease_joins_total", "", "",
		"no prefill engine was met at its side channel, %.0f times", "%.0f of %.0f times a prefill engine was not met", ""},
	{"tandem_lease_heartbeats_total", "", "",
		"no heartbeat arrived, of %.0f", "%.0f of %.0f heartbeats did not arrive", notArrived},
	{"tandem_kv_release_total", "way", "nixl",
		"no release arrived, of %.0f", "%.0f of %.0f releases did not arrive", notArrived},
}

// notArrived is what to do where engines are met, and nothing gets to them.
const notArrived = "let decode pods reach all TCP ports of prefill pods (NetworkPolicy), and have keeper and engines take one " +
	"network: UCX_NET_DEVICES, and tcp in UCX_TLS"

// leases tells whether prefill engines hear of their hand-offs. A failure now and then is that of an engine that has ended.
func (s *operated) leases() finding {
	found := finding{verdict: ok, seen: "nothing was to be told yet"}
	for _, d := range duties {
		n := s.tries(d.metric, d.label, d.value)
		switch {
		case n.all > 0 && n.failed == n.all:
			return finding{verdict: fail, seen: fmt.Sprintf(d.none, n.all), do: d.do}
		case n.failed*10 > n.all && found.verdict == ok:
			found = finding{verdict: warn, seen: fmt.Sprintf(d.some, n.failed, n.all), do: d.do}
		case n.all > 0 && found.verdict == ok:
			found.seen = "prefill engines are told"
		}
	}
	return found
}
