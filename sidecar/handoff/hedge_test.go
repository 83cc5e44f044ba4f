package handoff

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

func TestHedgerLate(t *testing.T) {
	pod := pd.Target{Host: "10.0.0.1", Port: 8000}
	learn := func(h *hedger, size int64, took ...time.Duration) {
		for _, d := range took {
			sent := time.Now()
			h.learn(&prefillLeg{target: pod, size: size, sent: sent, ended: sent.Add(d)})
		}
	}
	upTo := func(n int, step time.Duration) (list []time.Duration) {
		for i := range n {
			list = append(list, time.Duration(i+1)*step)
		}
		return list
	}
	cases := []struct {
		name string
		legs func(h *hedger)
		size int64
		want time.Duration // 0: not known
	}{
		{"no leg", func(*hedger) {}, 1000, 0},
		{"few legs", func(h *hedger) { learn(h, 1000, upTo(fewPrefills-1, time.Second)...) }, 1000, 0},
		{"enough legs", func(h *hedger) { learn(h, 1000, upTo(fewPrefills, time.Second)...) }, 1000, fewPrefills * time.Second},
		{"95 of 100", func(h *hedger) { learn(h, 1000, upTo(100, time.Second)...) }, 1000, 96 * time.Second},
		{"longer bodies", func(h *hedger) { learn(h, 1000, upTo(100, time.Second)...) }, 2002, 0},
		{"shorter bodies", func(h *hedger) { learn(h, 1000, upTo(100, time.Second)...) }, 499, 0},
		{"bodies of other sizes do not count", func(h *hedger) {
			learn(h, 1000, upTo(fewPrefills, time.Second)...)
			learn(h, 9000, upTo(fewPrefills, time.Minute)...)
		}, 1500, fewPrefills * time.Second},
		{"old legs are forgotten", func(h *hedger) {
			learn(h, 1000, upTo(300, time.Minute)...)
			learn(h, 1000, upTo(128, time.Second)...)
		}, 1000, 122 * time.Second},
		{"quick legs", func(h *hedger) { learn(h, 1000, upTo(100, time.Microsecond)...) }, 1000, leastHedgeDelay},
		{"legs that failed", func(h *hedger) {
			for range fewPrefills {
				h.learn(&prefillLeg{target: pod, size: 1000, err: errHung})
			}
		}, 1000, 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := newHedger(0.02)
			c.legs(h)
			if got, ok := h.late(pod, c.size); got != c.want || ok != (c.want > 0) {
				t.Errorf("late after %s, %v, want %s", got, ok, c.want)
			}
		})
	}
}

// A hedger knows a bounded number of pods: clients may name any address.
func TestHedgerIsBounded(t *testing.T) {
	h := newHedger(0.02)
	for port := range uint16(3 * maxHedged) {
		h.learn(&prefillLeg{target: pd.Target{Host: "10.0.0.1", Port: port}})
		if n := len(h.pods); n > maxHedged {
			t.Fatalf("%d pods", n)
		}
	}
}

func BenchmarkHedgerLate(b *testing.B) {
	h, pod := newHedger(0.02), pd.Target{Host: "10.0.0.1", Port: 8000}
	for i := range 128 {
		h.learn(&prefillLeg{target: pod, size: 1000, ended: time.Time{}.Add(time.Duration(i*37%128) * time.Millisecond)})
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := h.late(pod, 1000); !ok {
			b.Fatal("not known")
		}
	}
}
