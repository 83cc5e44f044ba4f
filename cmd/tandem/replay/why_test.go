package replay

import (
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/replay"
)

// records returns a run of three requests. Each has the engine that decodes, the one that prefills or "", and how long it took.
func records(decode, prefill [3]string, took [3]time.Duration) *run {
	r := &run{config: "config.yaml", result: &replay.Result{}}
	for i := range 3 {
		r.result.Records = append(r.result.Records, replay.Record{Index: i, Due: time.Duration(i) * time.Second, Input: 100 * (3 - i), Decode: decode[i],
			Prefill: prefill[i], Remote: prefill[i] != "", E2E: took[i], Refused: took[i] == 0, Reason: "uncached"})
	}
	return r
}

func TestCompare(t *testing.T) {
	for _, test := range []struct {
		name          string
		first, second *run
		lost, gained  int // requests, from 1; 0: none
		cause         string
	}{
		{"its own pick",
			records([3]string{"a", "b", "b"}, [3]string{}, [3]time.Duration{5e9, 2e9, 2e9}),
			records([3]string{"a", "b", "a"}, [3]string{}, [3]time.Duration{5e9, 2e9, 7e9}), 3, 0, "its own pick"},
		{"a long prompt was computed on its engine",
			records([3]string{"a", "b", "a"}, [3]string{"p", "", ""}, [3]time.Duration{5e9, 2e9, 2e9}),
			records([3]string{"a", "b", "a"}, [3]string{"", "", ""}, [3]time.Duration{5e9, 2e9, 7e9}), 3, 0, "the pick of request 1 (300 tokens): a (local, uncached), not p to a (remote, uncached)"},
		{"it was computed there before it came",
			records([3]string{"a", "b", "a"}, [3]string{"p", "", ""}, [3]time.Duration{1e9, 2e9, 7e9}),
			records([3]string{"a", "b", "a"}, [3]string{"", "", ""}, [3]time.Duration{1e9, 2e9, 9e9}), 3, 0, "earlier picks"},
		{"gained because a prompt went elsewhere",
			records([3]string{"b", "a", "a"}, [3]string{}, [3]time.Duration{1e9, 9e9, 9e9}),
			records([3]string{"b", "b", "a"}, [3]string{}, [3]time.Duration{1e9, 9e9, 2e9}), 0, 3, "the pick of request 2 (200 tokens): a (local, uncached), not b (local, uncached)"},
		{"one that is refused by one only is no change of times",
			records([3]string{"a", "a", "a"}, [3]string{}, [3]time.Duration{1e9, 1e9, 1e9}),
			records([3]string{"a", "", "a"}, [3]string{}, [3]time.Duration{1e9, 0, 1e9}), 0, 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := compare(test.first, test.second)
			for _, part := range []struct {
				changes []change
				want    int
			}{{c.Lost, test.lost}, {c.Gained, test.gained}} {
				switch {
				case part.want == 0 && len(part.changes) > 0:
					t.Errorf("%+v, want none", part.changes)
				case part.want > 0 && (len(part.changes) != 1 || part.changes[0].Request != part.want || !strings.HasPrefix(part.changes[0].Cause, test.cause)):
					t.Errorf("%+v, want request %d by %s", part.changes, part.want, test.cause)
				}
			}
			if c.Differ != 1 || c.Pick == nil {
				t.Errorf("%d picks differ, first %+v; want 1", c.Differ, c.Pick)
			}
		})
	}
}
