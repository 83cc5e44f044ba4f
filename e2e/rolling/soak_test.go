package rolling

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/tandem-serving/tandem/e2e/harness"
)

var soakFor = flag.Duration("soak.for", 0, "how long TestSoak runs (20m is a good time; give -timeout more); 0: not at all")

const (
	// soakSamples is how often the programs are looked at: once in 50 s of 20 minutes.
	soakSamples = 24
	// soakClients make the load. At half load most of them wait most of the time.
	soakClients = 12
	// soakWarmup is how many answers tell how many per second this machine can do.
	soakWarmup = 200
)

// soakSlack is what the median of a program's last quarter may be above that of its second: memory in MiB (the race
// detector's shadow comes and goes), what of it is Go's own, descriptors and goroutines, which follow the requests of the
// moment.
var soakSlack = harness.Holdings{RSS: 32, Own: 6, Descriptors: 32, Goroutines: 48}

// TestSoak runs a stack of programs that were built with the race detector under a mixed load, half of what it can do, with
// clients that leave. Nothing fails, no race is found, nothing is stranded, and nothing grows once all has been used.
func TestSoak(t *testing.T) {
	if *soakFor == 0 {
		t.Skip("a soak takes its time: -soak.for=20m")
	}
	plain := harness.BinDir
	harness.BinDir = buildRaced(t)
	defer func() { harness.BinDir = plain }()
	t.Setenv("GORACE", "exitcode=66 atexit_sleep_ms=0") // a program in which a race was found does not end cleanly
	f := newRollingFleet(t)
	f.awaitPickers(t, rollingPairs)
	pause := f.halfLoad(t)
	l := f.press(t, soakClients, pause)
	t.Logf("each of %d clients sends a request every %v", soakClients, pause.Round(time.Millisecond))
	history := f.watch(t, l)
	l.end()
	served, failed := l.counts()
	t.Logf("%d requests, %d failed", served+failed, failed)
	l.mustHaveServed(t, "it was soaked", 0)
	f.mustBeWhole(t)
	for _, name := range slices.Sorted(maps.Keys(history)) {
		mustNotGrow(t, name, history[name])
	}
}

// buildRaced builds the programs of the stack with the race detector.
func buildRaced(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-race", "-o", dir,
		"./cmd/epp", "./cmd/sidecar", "./cmd/sim", "./cmd/tandem")
	build.Dir = harness.Root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the programs: %v\n%s", err, out)
	}
	return dir
}

// halfLoad finds out what the stack can do, and gives the pause of each client that makes half of it.
func (f *rollingFleet) halfLoad(t *testing.T) time.Duration {
	t.Helper()
	l := f.press(t, soakClients, 0)
	begun := time.Now()
	l.await(t, soakWarmup)
	took := time.Since(begun)
	l.end()
	return 2 * soakClients * took / soakWarmup
}

// watch looks at all programs until the time is over.
func (f *rollingFleet) watch(t *testing.T, l *rollingLoad) map[string][]harness.Holdings {
	t.Helper()
	history := map[string][]harness.Holdings{}
	every := time.NewTicker(*soakFor / soakSamples)
	defer every.Stop()
	for range soakSamples {
		select {
		case <-every.C:
		case <-t.Context().Done():
			t.Fatal("interrupted")
		}
		var table bytes.Buffer
		rows := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
		now := f.held(t)
		for _, name := range slices.Sorted(maps.Keys(now)) {
			u := now[name]
			history[name] = append(history[name], u)
			fmt.Fprintf(rows, "%s\t%v\t\n", name, u)
		}
		if err := rows.Flush(); err != nil {
			t.Fatal(err)
		}
		served, failed := l.counts()
		t.Logf("%d served, %d failed\n%s", served, failed, &table)
	}
	return history
}

// held looks at all programs of the stack.
func (f *rollingFleet) held(t *testing.T) map[string]harness.Holdings {
	t.Helper()
	all := map[string]harness.Holdings{}
	for name, p := range f.engines {
		all[name] = harness.HoldingsOf(t, p.PID(), "")
	}
	for i := range rollingPairs {
		all[fmt.Sprintf("epp-%d", i)] = harness.HoldingsOf(t, f.Pickers[i].PID(), f.Pickers[i].Addr("metrics"))
		all[fmt.Sprintf("sidecar-%d", i)] = harness.HoldingsOf(t, f.Decode[i].Sidecar.PID(), f.Decode[i].Sidecar.Addr("metrics"))
		all[fmt.Sprintf("envoy-%d", i)] = harness.HoldingsOf(t, f.proxies[i].PID(), "")
	}
	return all
}

// mustNotGrow compares the second quarter, when caches and pools have filled, with the last.
func mustNotGrow(t *testing.T, name string, history []harness.Holdings) {
	t.Helper()
	quarter := len(history) / 4
	for _, c := range []struct {
		what  string
		of    func(harness.Holdings) int
		slack int
	}{
		{"MiB", func(u harness.Holdings) int { return u.RSS }, soakSlack.RSS},
		{"MiB of Go's", func(u harness.Holdings) int { return u.Own }, soakSlack.Own},
		{"descriptors", func(u harness.Holdings) int { return u.Descriptors }, soakSlack.Descriptors},
		{"goroutines", func(u harness.Holdings) int { return u.Goroutines }, soakSlack.Goroutines},
	} {
		before, after := soakMedian(history[quarter:2*quarter], c.of), soakMedian(history[3*quarter:], c.of)
		if after > before+before/4+c.slack {
			t.Errorf("%s grows: %d %s in the second quarter, %d in the last", name, before, c.what, after)
		}
	}
}

func soakMedian[E any, N cmp.Ordered](all []E, of func(E) N) N {
	values := make([]N, len(all))
	for i, e := range all {
		values[i] = of(e)
	}
	slices.Sort(values)
	return values[len(values)/2]
}
