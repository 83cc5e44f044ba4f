package lease

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/sim/transport"
)

// BenchmarkHold is what holding costs a request: the engine is known, and decode takes over at once.
func BenchmarkHold(b *testing.B) {
	w := newWorld(b)
	p := w.engine("e", "10.0.0.1")
	registry := w.registry()
	connect(b, registry, p)
	h, finished := p.handoff(b, "cmpl-8f72f0f689d14879-0-b61e59d0"), time.Now()
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			registry.Hold(h, finished).End()
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				registry.Hold(h, finished).End()
			}
		})
	})
	b.Run("beside-a-thousand", func(b *testing.B) {
		for range 1000 {
			defer registry.Hold(h, finished).End()
		}
		b.ReportAllocs()
		for b.Loop() {
			registry.Hold(h, finished).End()
		}
	})
	b.Run("none", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			(*Registry)(nil).Hold(h, finished).End()
		}
	})
}

// BenchmarkRelease is a release without a network.
func BenchmarkRelease(b *testing.B) {
	w := newWorld(b)
	p := w.engine("e", "10.0.0.1")
	registry := w.registry()
	connect(b, registry, p)
	h := p.handoff(b, "cmpl-8f72f0f689d14879-0-b61e59d0")
	b.ReportAllocs()
	for b.Loop() {
		if err := registry.Hold(h, time.Now()).Release(b.Context()); err != nil {
			b.Fatal(err)
		}
		<-p.ranks[0].Notifications()
	}
}

// BenchmarkConnect connects to an engine over loopback, which no request waits for.
func BenchmarkConnect(b *testing.B) {
	p, _ := tcpEngine(b, "e", loopback)
	agent := tcpAgent(b, transport.TCPConfig{Name: "sidecar"})
	h := p.handoff(b, "r")
	b.ReportAllocs()
	for b.Loop() {
		registry := New(Config{Noticer: vllm, Lease: term, Notifier: agent})
		held := registry.Hold(h, time.Now())
		if _, err := registry.connectedRanks(b.Context(), held.engine); err != nil {
			b.Fatal(err)
		}
		registry.Close()
	}
}
