package doctor

import (
	"strings"
	"testing"
)

// TestLinkSpeed: what the sums of an engine's transfers say about its link.
func TestLinkSpeed(t *testing.T) {
	for name, c := range map[string]struct {
		bytes, seconds, transfers float64
		want                      verdict
		seen                      string
	}{
		"two engines on an H100, over TCP": {937426944, 2.668992, 5, warn, "0.35 GB/s on average over 5 KV caches of 187 MB, as over TCP"},
		"RDMA":                             {167e6 * 100, 3.87, 100, ok, "4.32 GB/s on average over 100 KV caches of 167 MB"},
		"a probe":                          {65536, 0.01, 1, unknown, "too small to tell (0.07 MB on average)"},
		"nothing":                          {0, 0, 0, unknown, "has read no KV cache yet"},
	} {
		if got := linkSpeed(c.bytes, c.seconds, c.transfers); got.verdict != c.want || !strings.Contains(got.seen, c.seen) {
			t.Errorf("%s: %s %q, want %s %q", name, got.verdict, got.seen, c.want, c.seen)
		}
	}
}
