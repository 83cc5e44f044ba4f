package epp_test

import (
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

func TestIfAvailable(t *testing.T) {
	for _, c := range []struct {
		prefer string
		want   bool
	}{
		{"if-available", true},
		{"If-Available", true},
		{" respond-async , if-available ; wait=10", true},
		{"if-available=1", true},
		{"return=if-available", false},
		{"if-available-now", false},
		{"respond-async; if-available", false},
		{"", false},
	} {
		if got := epp.IfAvailable(c.prefer); got != c.want {
			t.Errorf("%q: got %v", c.prefer, got)
		}
	}
}
