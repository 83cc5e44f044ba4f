package sidecar

import (
	"net/http"
	"testing"
)

// A client of a saturated local engine gets the engine's own answer, and when to try again.
func TestFullEngine(t *testing.T) {
	for _, c := range []struct {
		name, said, want string
		status           int
	}{
		{"full", "", "1", http.StatusServiceUnavailable},
		{"too many", "", "1", http.StatusTooManyRequests},
		{"full, and says when", "17", "17", http.StatusServiceUnavailable},
		{"broken", "", "", http.StatusInternalServerError},
	} {
		t.Run(c.name, func(t *testing.T) {
			decode := startEngine(t, func(w http.ResponseWriter, r *asked) {
				if c.said != "" {
					w.Header().Set("Retry-After", c.said)
				}
				says(c.status, "application/json", `{"error":{"message":"busy"}}`)(w, r)
			})
			s := startRig(t, decode.addr)
			got := post(t, s.url+completionsPath, ask(false).body)
			if after := got.header.Get("Retry-After"); got.status != c.status || after != c.want {
				t.Errorf("status %d, Retry-After %q, want %d %q", got.status, after, c.status, c.want)
			}
		})
	}
}
