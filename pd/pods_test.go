package pd_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

func TestPods(t *testing.T) {
	for _, c := range []struct {
		value string
		want  pd.Pods
		ok    bool
	}{
		{"decode=10.0.0.2:8000", pd.Pods{Decode: "10.0.0.2:8000"}, true},
		{"decode=10.0.0.2:8000;prefill=[fd00::1]:8000", pd.Pods{Decode: "10.0.0.2:8000", Prefill: "[fd00::1]:8000"}, true},
		{"", pd.Pods{}, false},
		{"prefill=10.0.0.1:8000", pd.Pods{}, false},
		{"decode=10.0.0.2:8000;decode=10.0.0.3:8000", pd.Pods{}, false},
		{"decode=10.0.0.2:8000;encode=10.0.0.3:8000", pd.Pods{}, false},
	} {
		got, err := pd.ParsePods(c.value)
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%q: %+v, %v", c.value, got, err)
		}
		if c.ok && got.String() != c.value {
			t.Errorf("%q is written as %q", c.value, got)
		}
	}
}
