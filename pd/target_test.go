package pd_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

func TestParseTargets(t *testing.T) {
	label := strings.Repeat("a", 63)
	long := strings.Join([]string{label, label, label, strings.Repeat("b", 61)}, ".") // 253 bytes
	cases := []struct {
		name   string
		values []string
		want   []pd.Target
	}{
		{"no header", nil, nil},
		{"IPv4", []string{"10.0.0.7:8000"}, []pd.Target{{"10.0.0.7", 8000}}},
		{"IPv6", []string{"[fd00::7]:8000"}, []pd.Target{{"fd00::7", 8000}}},
		{"IPv4 in IPv6", []string{"[::ffff:10.0.0.7]:8000"}, []pd.Target{{"::ffff:10.0.0.7", 8000}}},
		{"a name", []string{"prefill-0.pool.svc.cluster.local:8000"}, []pd.Target{{"prefill-0.pool.svc.cluster.local", 8000}}},
		{"a short name", []string{"p:1"}, []pd.Target{{"p", 1}}},
		{"a name with underscore and capitals", []string{"Prefill_0:8000"}, []pd.Target{{"Prefill_0", 8000}}},
		{"a name that begins with a digit", []string{"3com.example:8000"}, []pd.Target{{"3com.example", 8000}}},
		{"the longest name", []string{long + ":65535"}, []pd.Target{{long, 65535}}},
		{"a list, in its order", []string{"b:2,a:1"}, []pd.Target{{"b", 2}, {"a", 1}}},
		{"blanks around the members of a list", []string{" a:1 ,\tb:2 "}, []pd.Target{{"a", 1}, {"b", 2}}},
		{"several lines", []string{"a:1,b:2", "c:3"}, []pd.Target{{"a", 1}, {"b", 2}, {"c", 3}}},
		{"twice the same", []string{"a:1,a:1"}, []pd.Target{{"a", 1}, {"a", 1}}},
		{"the borders of ports", []string{"a:1,a:65535"}, []pd.Target{{"a", 1}, {"a", 65535}}},
		{"as many as may be", []string{strings.Repeat("a:1,", pd.MaxTargets-1) + "a:1"}, slices.Repeat([]pd.Target{{"a", 1}}, pd.MaxTargets)},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := pd.ParseTargets(c.values)
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

func TestParseTargetsRefuses(t *testing.T) {
	const form, port = "host:port", "port from 1 to 65535"
	cases := []struct{ name, in, err string }{
		{"nothing", "", form},
		{"a blank", " ", form},
		{"a comma at the end", "a:1,", form},
		{"a comma at the beginning", ",a:1", form},
		{"two commas", "a:1,,b:2", form},
		{"semicolons", "a:1;b:2", form},
		{"no port", "a", form},
		{"no host", ":8000", form},
		{"an empty port", "a:", port},
		{"port 0", "a:0", port},
		{"port 65536", "a:65536", port},
		{"a port beyond integers", "a:99999999999999999999", port},
		{"a negative port", "a:-1", port},
		{"a port with a sign", "a:+80", port},
		{"the name of a port", "a:http", port},
		{"a hexadecimal port", "a:0x50", port},
		{"a path", "a:80/v1", port},
		{"a query", "a:80?x", port},
		{"a scheme", "http://a:80", form},
		{"a scheme without a port", "http://a", port},
		{"a user", "user@a:80", form},
		{"a user with a password", "user:secret@a:80", form},
		{"a blank before the port", "a: 80", port},
		{"a blank inside the name", "a b:80", form},
		{"a line break", "a\r\nx:80", form},
		{"a NUL", "a\x00:80", form},
		{"IPv6 without brackets", "fd00::7:8000", form},
		{"a bracket too few", "[fd00::7:8000", form},
		{"a bracket too many", "fd00::7]:8000", form},
		{"something after the bracket", "[fd00::7]x:8000", form},
		{"brackets with nothing in them", "[]:8000", form},
		{"IPv4 in brackets", "[10.0.0.7]:8000", form},
		{"a name in brackets", "[prefill-0]:8000", form},
		{"a zone", "[fe80::1%eth0]:8000", form},
		{"IPv6 without a port", "[fd00::7]", form},
		{"IPv4 with five numbers", "10.0.0.0.7:8000", form},
		{"IPv4 with three numbers", "10.0.7:8000", form},
		{"IPv4 with a number too large", "10.0.0.256:8000", form},
		{"IPv4 with leading zeros", "010.0.0.7:8000", form},
		{"IPv4 as one number", "167772167:8000", form},
		{"a name with an empty label", "a..b:80", form},
		{"a dot at the end", "a.:80", form},
		{"a hyphen at the beginning", "-a:80", form},
		{"a hyphen at the end of a label", "a-.b:80", form},
		{"a label that is too long", strings.Repeat("a", 64) + ":80", form},
		{"a name that is too long", strings.Repeat("a.", 127) + ":80", form},
		{"a very long name", strings.Repeat("a.", 5000) + "a:80", form},
		{"letters that are no ASCII", "prefíll:80", form},
		{"a star", "*:80", form},
		{"a backtick, which is an @ without one bit", "a`b:80", form},
		{"one too many", strings.Repeat("a:1,", pd.MaxTargets) + "a:1", "more than 16"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, values := range [][]string{{c.in}, {"good:1", c.in}} {
				got, err := pd.ParseTargets(values)
				if err == nil || got != nil {
					t.Fatalf("%q: got %v, %v", values, got, err)
				}
				if !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), pd.HeaderPrefill) {
					t.Errorf("%q: got %q, want %q in it", values, err, c.err)
				}
			}
		})
	}
}

// TestParseTargetsRepeatsNothing: the message goes to the client and into logs, so it must not repeat the header's value.
func TestParseTargetsRepeatsNothing(t *testing.T) {
	if _, err := pd.ParseTargets([]string{"user:secret@a:80"}); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}

func TestTargetAddr(t *testing.T) {
	cases := []struct {
		target pd.Target
		addr   string // "" = none
	}{
		{pd.Target{Host: "10.0.0.7", Port: 8000}, "10.0.0.7:8000"},
		{pd.Target{Host: "fd00::7", Port: 8000}, "[fd00::7]:8000"},
		{pd.Target{Host: "::ffff:169.254.169.254", Port: 80}, "169.254.169.254:80"}, // an allow-list must see the real one
		{pd.Target{Host: "prefill-0", Port: 8000}, ""},
	}
	for _, c := range cases {
		addr, ok := c.target.Addr()
		if ok != (c.addr != "") || ok && addr != netip.MustParseAddrPort(c.addr) {
			t.Errorf("%s: got %s, %v", c.target, addr, ok)
		}
	}
}

func FuzzTargets(f *testing.F) {
	for _, seed := range []string{"10.0.0.7:8000", "[fd00::7]:8000,p-0.pool:1", "[fe80::1%a]:1", "a:1, b:2", "a@b:1", "1.2.3:4"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		targets, err := pd.ParseTargets([]string{in})
		if err != nil {
			return
		}
		texts := make([]string, len(targets))
		for i, target := range targets {
			texts[i] = target.String()
			if target.Port == 0 || strings.ContainsAny(target.Host, "@/%[] \t\r\n\x00,") {
				t.Fatalf("%q gives %+v", in, target)
			}
		}
		back, err := pd.ParseTargets([]string{strings.Join(texts, ",")})
		if err != nil || !slices.Equal(back, targets) {
			t.Fatalf("%q gives %v, which gives %v, %v", in, targets, back, err)
		}
	})
}
