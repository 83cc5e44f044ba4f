package plugin

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

// TestHeaderFilter: which endpoints are left of three pods, the second of which has three ports.
func TestHeaderFilter(t *testing.T) {
	all := []string{"10.0.0.1:3000", "10.0.0.2:3000", "10.0.0.2:3002", "10.0.0.2:3004", "[fd00::3]:3000"}
	for _, c := range []struct{ name, header, want string }{
		{"no header", "", ""},
		{"blank", " , ", ""},
		{"an ip", "10.0.0.1", "10.0.0.1:3000"},
		{"an ip of several ports", "10.0.0.2", "10.0.0.2:3000 10.0.0.2:3002 10.0.0.2:3004"},
		{"an ip:port", "10.0.0.2:3002", "10.0.0.2:3002"},
		{"ports of one pod", "10.0.0.2:3004,10.0.0.2:3000", "10.0.0.2:3000 10.0.0.2:3004"},
		{"several pods, with blanks", "10.0.0.1, [fd00::3]", "10.0.0.1:3000 [fd00::3]:3000"},
		{"IPv6 with a port", "[fd00::3]:3000", "[fd00::3]:3000"},
		{"another port", "10.0.0.1:3002", ""},
		{"unknown", "10.0.0.9,nonsense", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var candidates []epp.Candidate
			for _, addr := range all {
				candidates = append(candidates, epp.Candidate{Load: &epp.Load{},
					Endpoint: epp.NewEndpoint("ns", addr, netip.MustParseAddrPort(addr), "", nil)})
			}
			var left []string
			for _, kept := range build[epp.Filter](t, "header-based-testing-filter", "").Filter(asked("test-epp-endpoint-selection", c.header), candidates) {
				left = append(left, kept.Address)
			}
			if got := strings.Join(left, " "); got != c.want {
				t.Errorf("%q is left, want %q", got, c.want)
			}
		})
	}
}

// TestServedVerifier: the answer tells what the gateway reports, in the gateway's own words, and not what the picker knows.
func TestServedVerifier(t *testing.T) {
	by := epp.NewEndpoint("ns", "picked", netip.MustParseAddrPort("10.0.0.1:3000"), "", nil)
	for reported, want := range map[string]string{
		"10.0.0.2:3002": "10.0.0.2:3002",
		"":              "fail: missing destination endpoint served metadata",
	} {
		told := map[string]string{}
		build[epp.Stamper](t, "destination-endpoint-served-verifier", "").Stamp(&epp.Answer{Decision: sentTo(by), By: by, Reported: reported},
			func(name, value string) { told[name] = value })
		if len(told) != 1 || told["x-conformance-test-served-endpoint"] != want {
			t.Errorf("%q reported: answers tell %v, want %q", reported, told, want)
		}
	}
}
