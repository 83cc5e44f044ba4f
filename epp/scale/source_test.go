package scale

import (
	"strings"
	"testing"
)

func TestOf(t *testing.T) {
	sizes := []Size{{Role: "decode", Variant: "big"}, {Role: "decode", Variant: "small"}, {Role: "prefill", Variant: "p"}}
	for _, test := range []struct{ role, variant, want, err string }{
		{"prefill", "", "p", ""},
		{"", "small", "small", ""},
		{"decode", "big", "big", ""},
		{"decode", "", "", "fit 2 sizes"},
		{"decode", "p", "", `no size has role "decode" and variant "p": name one of role "decode" (variant "big"), role`},
	} {
		got, err := Of(sizes, test.role, test.variant)
		if got.Variant != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%q, %q: %+v, %v; want %q %q", test.role, test.variant, got, err, test.want, test.err)
		}
	}
	if _, err := Of(nil, "decode", ""); err == nil || !strings.Contains(err.Error(), "sizes no role") {
		t.Errorf("without sizes: %v", err)
	}
}
