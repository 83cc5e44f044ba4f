package pd_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

// BenchmarkWire is what every request pays for our headers.
func BenchmarkWire(b *testing.B) {
	run := func(name string, f func() error) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	p, err := pd.ParsePlan(plan)
	if err != nil {
		b.Fatal(err)
	}
	const decision = "remote;reason=uncached;attempts=1;candidate=0"
	const timing = "epp;dur=0.8, recv;dur=0.3, prefill;dur=312.4, handoff;dur=0.6, first;dur=41"
	phases, err := pd.ParseTiming(timing)
	if err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 0, 256)
	targets := []string{"10.0.0.7:8000,10.0.0.8:8000,[fd00::9]:8000"}
	run("plan-parse", func() error { _, err := pd.ParsePlan(plan); return err })
	run("plan-print", func() error { _ = p.String(); return nil })
	run("decision-parse", func() error { _, err := pd.ParseResult(decision); return err })
	run("targets-parse", func() error { _, err := pd.ParseTargets(targets); return err })
	run("timing-parse", func() error { _, err := pd.ParseTiming(timing); return err })
	run("timing-print", func() error { buf = phases.AppendTiming(buf[:0], pd.PhaseEPP); return nil })
	run("internal", func() error { pd.Internal("X-Gateway-Destination-Endpoint"); return nil })
}
