package scale

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pd"
)

func TestSteady(t *testing.T) {
	type moment struct {
		minute           int
		needed, withMore int
		want             int
	}
	for _, test := range []struct {
		name    string
		moments []moment
	}{
		{"more at once", []moment{{0, 2, 2, 2}, {1, 5, 5, 5}}},
		{"fewer only after the window", []moment{{0, 5, 5, 5}, {1, 2, 2, 5}, {5, 2, 2, 5}, {16, 2, 2, 2}}},
		{"fewer only if they suffice for more load", []moment{{0, 3, 3, 3}, {11, 2, 3, 3}, {17, 2, 3, 3}, {23, 2, 2, 2}}},
		{"the most of the window counts", []moment{{0, 2, 2, 2}, {20, 1, 1, 1}, {21, 6, 6, 6}, {32, 2, 4, 4}, {34, 2, 2, 4}, {38, 2, 2, 2}}},
		{"no second reversal within ten minutes", []moment{{0, 2, 2, 2}, {10, 1, 1, 1}, {11, 3, 3, 3}, {18, 1, 1, 3}, {20, 1, 1, 3}, {21, 1, 1, 1}}},
		{"what has just started knows no load", []moment{{0, 0, 0, 2}, {4, 0, 0, 2}, {6, 0, 0, 1}}},
		{"within the limits", []moment{{0, 2, 2, 2}, {1, 90, 90, 8}, {30, 0, 0, 1}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var s steady
			start := time.Unix(1000, 0)
			for _, m := range test.moments {
				at := start.Add(time.Duration(m.minute) * time.Minute)
				if got := s.follow(at, m.needed, m.withMore, 2, Limits{1, 8, 5 * time.Minute}); got != m.want {
					t.Errorf("minute %d: size %d, want %d", m.minute, got, m.want)
				}
			}
		})
	}
}

// TestSteadyForesees: a size that falls was foreseen an interval before, and one that was foreseen to fall does, unless more is needed.
func TestSteadyForesees(t *testing.T) {
	var s steady
	now, limits := time.Unix(1000, 0), Limits{1, 8, 5 * time.Minute}
	fell, foreseen := 0, 0
	for i := range 200 {
		needed := 2
		if i < 10 || i >= 90 && i < 100 {
			needed = 5
		}
		size, soon := s.size, s.soon
		got := s.follow(now, needed, needed, 5, limits)
		if i > 0 && soon < size {
			foreseen++
		}
		if i > 0 && got < size {
			fell++
		}
		if i > 0 && needed <= size && got != soon {
			t.Errorf("interval %d: size %d, foreseen %d", i, got, soon)
		}
		now = now.Add(Interval)
	}
	if fell != 2 || foreseen != 2 {
		t.Errorf("the size has fallen %d times, and %d times that was foreseen, want 2", fell, foreseen)
	}
}

// TestCachedTokensNeedNoReplicas: what the endpoint that computes a prompt has cached is no work, be it a prefill or a decode endpoint.
func TestCachedTokensNeedNoReplicas(t *testing.T) {
	b := startSizer(t, 1, 1)
	remote := b.decision(8000)
	remote.Picks[1].Seen.Cached = 7000
	local := b.decision(8000)
	local.Verdict, local.Picks, local.Cached = pd.Local, local.Picks[:1], 6000
	for _, test := range []struct {
		name  string
		count func() (tokens, prompts float64)
		want  float64
	}{
		{"remote", func() (float64, float64) {
			b.Picked(nil, nil, remote)
			m := mix{}
			m.take(&b.picks)
			return m.remoteTokens[classOf(1000)], m.tokens
		}, 1000},
		{"local", func() (float64, float64) {
			b.Picked(nil, nil, local)
			m := mix{}
			m.take(&b.picks)
			return m.localTokens[classOf(2000)], m.tokens
		}, 2000},
	} {
		if computed, all := test.count(); computed != test.want || all != 8000 {
			t.Errorf("%s: %v tokens are computed of %v, want %v of 8000", test.name, computed, all, test.want)
		}
	}
}
