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
	book := w.book()
	meet(b, book, p)
	h, finished := p.handoff(b, "cmpl-8f72f0f689d14879-0-b61e59d0"), time.Now()
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			book.Hold(h, finished).End()
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				book.Hold(h, finished).End()
			}
		})
	})
	b.Run("beside-a-thousand", func(b *testing.B) {
		for range 1000 {
			defer book.Hold(h, finished).End()
		}
		b.ReportAllocs()
		for b.Loop() {
			book.Hold(h, finished).End()
		}
	})
	b.Run("none", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			(*Book)(nil).Hold(h, finished).End()
		}
	})
}

// BenchmarkRelease is a release without a network.
func BenchmarkRelease(b *testing.B) {
	w := newWorld(b)
	p := w.engine("e", "10.0.0.1")
	book := w.book()
	meet(b, book, p)
	h := p.handoff(b, "cmpl-8f72f0f689d14879-0-b61e59d0")
	b.ReportAllocs()
	for b.Loop() {
		if err := book.Hold(h, time.Now()).Release(b.Context()); err != nil {
			b.Fatal(err)
		}
		<-p.ranks[0].Notifications()
	}
}

// BenchmarkJoin is a join over loopback, which no request waits for.
func BenchmarkJoin(b *testing.B) {
	p, _ := tcpEngine(b, "e", loopback)
	agent := tcpAgent(b, transport.TCPConfig{Name: "sidecar"})
	h := p.handoff(b, "r")
	b.ReportAllocs()
	for b.Loop() {
		book := New(Config{Noticer: vllm, Lease: term, Notifier: agent})
		held := book.Hold(h, time.Now())
		if _, err := book.meetRanks(b.Context(), held.engine); err != nil {
			b.Fatal(err)
		}
		book.Close()
	}
}
