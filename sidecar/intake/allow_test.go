package intake

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pd"
)

func TestAllowRuleText(t *testing.T) {
	cases := []struct {
		in, prefix string
		port       uint16
		out        string
	}{
		{"10.0.0.0/8", "10.0.0.0/8", 0, "10.0.0.0/8"},
		{"10.0.0.0/8:8000", "10.0.0.0/8", 8000, "10.0.0.0/8:8000"},
		{"10.0.0.0/8:*", "10.0.0.0/8", 0, "10.0.0.0/8"},
		{"10.1.2.3", "10.1.2.3/32", 0, "10.1.2.3/32"},
		{"10.1.2.3:65535", "10.1.2.3/32", 65535, "10.1.2.3/32:65535"},
		{"10.1.2.3/8", "10.0.0.0/8", 0, "10.0.0.0/8"}, // the host bits mean nothing
		{"fd00::/8", "fd00::/8", 0, "fd00::/8"},
		{"fd00::1", "fd00::1/128", 0, "fd00::1/128"},
		{"[fd00::/8]:8000", "fd00::/8", 8000, "[fd00::/8]:8000"},
		{"[fd00::1]:8000", "fd00::1/128", 8000, "[fd00::1/128]:8000"},
		{"[fd00::/8]", "fd00::/8", 0, "fd00::/8"},
		{"::ffff:10.1.2.3", "10.1.2.3/32", 0, "10.1.2.3/32"},
		{"0.0.0.0/0", "0.0.0.0/0", 0, "0.0.0.0/0"},
	}
	for _, c := range cases {
		t.Run(c.in, func(t *testing.T) {
			var r AllowRule
			if err := r.UnmarshalText([]byte(c.in)); err != nil {
				t.Fatal(err)
			}
			if r.Prefix.String() != c.prefix || r.Port != c.port {
				t.Errorf("got %v port %d", r.Prefix, r.Port)
			}
			out, err := r.MarshalText()
			if err != nil || string(out) != c.out {
				t.Errorf("printed %s, %v", out, err)
			}
			var again AllowRule
			if err := again.UnmarshalText(out); err != nil || again != r {
				t.Errorf("read again %v, %v", again, err)
			}
		})
	}
	for _, in := range []string{"", "x", "10.0.0.0/33", "10.0.0.0/8:0", "10.0.0.0/8:65536", "10.0.0.0/8:x", "10.0.0.0/8:-1", "[fd00::/8", "[fd00::/8]8000",
		"[fd00::/8]:0", "fd00::/8:8000", "10.0.0:80", ":80", "[]:80", "pods.local", "10.0.0.0/8,10.0.0.0/8"} {
		t.Run("not "+in, func(t *testing.T) {
			r := AllowRule{Port: 7}
			if err := r.UnmarshalText([]byte(in)); err == nil {
				t.Errorf("was read as %v", r)
			}
			if (r != AllowRule{Port: 7}) {
				t.Errorf("was changed to %v", r)
			}
		})
	}
}

func rules(t *testing.T, texts ...string) []AllowRule {
	t.Helper()
	list := make([]AllowRule, len(texts))
	for i, text := range texts {
		if err := list[i].UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	return list
}

func TestAllowList(t *testing.T) {
	cases := []struct {
		name  string
		rules []string // none: the default
		to    string
		want  bool
	}{
		{"10/8", nil, "10.1.2.3:1", true},
		{"the end of 10/8", nil, "10.255.255.255:65535", true},
		{"172.16/12", nil, "172.31.0.1:80", true},
		{"behind 172.16/12", nil, "172.32.0.1:80", false},
		{"192.168/16", nil, "192.168.0.1:80", true},
		{"100.64/10", nil, "100.127.0.1:80", true},
		{"behind 100.64/10", nil, "100.128.0.1:80", false},
		{"fc00::/7", nil, "[fd12::1]:80", true},
		{"public", nil, "8.8.8.8:80", false},
		{"public IPv6", nil, "[2001:db8::1]:80", false},
		{"loopback", nil, "127.0.0.1:80", false},
		{"IPv6 loopback", nil, "[::1]:80", false},
		{"unspecified", nil, "0.0.0.0:80", false},
		{"link-local", nil, "169.254.1.1:80", false},
		{"IPv6 link-local", nil, "[fe80::1]:80", false},
		{"metadata", nil, "169.254.169.254:80", false},
		{"Alibaba's metadata", nil, "100.100.100.200:80", false},
		{"AWS's IPv6 metadata", nil, "[fd00:ec2::254]:80", false},
		{"multicast", nil, "224.0.0.1:80", false},
		{"mapped private", nil, "[::ffff:10.1.2.3]:80", true},
		{"mapped loopback", nil, "[::ffff:127.0.0.1]:80", false},
		{"mapped metadata", nil, "[::ffff:169.254.169.254]:80", false},
		{"with a zone", nil, "[fd12::1%eth0]:80", true},

		{"listed", []string{"127.0.0.1"}, "127.0.0.1:80", true},
		{"a list replaces the default", []string{"127.0.0.1"}, "10.1.2.3:80", false},
		{"listed port", []string{"10.0.0.0/8:8000"}, "10.1.2.3:8000", true},
		{"other port", []string{"10.0.0.0/8:8000"}, "10.1.2.3:8001", false},
		{"second rule", []string{"10.0.0.0/8:8000", "10.0.0.0/8:8001"}, "10.1.2.3:8001", true},
		{"listed link-local", []string{"169.254.0.0/16"}, "169.254.1.1:80", true},
		{"metadata in a range", []string{"100.64.0.0/10"}, "100.100.100.200:80", false},
		{"metadata in everything", []string{"0.0.0.0/0"}, "100.100.100.200:80", false},
		{"metadata by itself", []string{"100.100.100.200"}, "100.100.100.200:80", true},
		{"the metadata of most clouds in its range", []string{"169.254.0.0/16"}, "169.254.169.254:80", false},
		{"the metadata of most clouds by itself", []string{"169.254.169.254"}, "169.254.169.254:80", true},
		{"Azure's host in everything", []string{"0.0.0.0/0"}, "168.63.129.16:80", false},
		{"public in everything", []string{"0.0.0.0/0"}, "8.8.8.8:80", true},
		{"loopback in everything", []string{"0.0.0.0/0"}, "127.0.0.1:80", false},
		{"mapped loopback in everything", []string{"0.0.0.0/0"}, "[::ffff:127.0.0.1]:80", false},
		{"loopback in half of everything", []string{"0.0.0.0/1"}, "127.0.0.1:80", false},
		{"loopback in its range", []string{"127.0.0.0/8"}, "127.0.0.1:80", true},
		{"unspecified in everything", []string{"0.0.0.0/0"}, "0.0.0.0:80", false},
		{"link-local in everything", []string{"0.0.0.0/0"}, "169.254.1.1:80", false},
		{"multicast in everything", []string{"0.0.0.0/0"}, "239.0.0.1:80", false},
		{"broadcast in everything", []string{"0.0.0.0/0"}, "255.255.255.255:80", false},
		{"IPv6 loopback in everything", []string{"::/0"}, "[::1]:80", false},
		{"IPv6 loopback by itself", []string{"::1"}, "[::1]:80", true},
		{"IPv6 link-local in everything", []string{"::/0"}, "[fe80::1]:80", false},
		{"IPv4 as IPv6 once had it", []string{"::/0"}, "[::127.0.0.1]:80", false},
		{"translated metadata", []string{"::/0"}, "[64:ff9b::a9fe:a9fe]:80", false},
		{"everything of IPv4 is no IPv6", []string{"0.0.0.0/0"}, "[fd12::1]:80", false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			list, to := NewAllowList(rules(t, c.rules...), false, nil), netip.MustParseAddrPort(c.to)
			if got := list.allows(to); got != c.want {
				t.Errorf("allows(%s) is %v", to, got)
			}
			refusal := list.Check(pd.Target{Host: to.Addr().WithZone("").String(), Port: to.Port()})
			if (refusal == nil) != c.want || refusal != nil && refusal.Reason != pd.DeniedTarget {
				t.Errorf("Check(%s) is %v", to, refusal)
			}
			if err := list.Control(t.Context(), "tcp", to.String(), nil); (err == nil) != c.want {
				t.Errorf("Control(%s) is %v", to, err)
			}
		})
	}
	t.Run("a name waits for its address", func(t *testing.T) {
		if refusal := NewAllowList(nil, false, nil).Check(pd.Target{Host: "localhost", Port: 80}); refusal != nil {
			t.Errorf("%v", refusal)
		}
	})
	t.Run("what is dialled is no address", func(t *testing.T) {
		if err := NewAllowList(nil, false, nil).Control(t.Context(), "unix", "/tmp/socket", nil); err == nil {
			t.Error("allowed")
		}
	})
}

// TestAllowLoopback: the switch adds this machine's addresses to the rules, or to the private ranges.
func TestAllowLoopback(t *testing.T) {
	for _, c := range []struct {
		rules []string
		to    string
		want  bool
	}{
		{nil, "127.0.0.1:80", true},
		{nil, "127.1.2.3:80", true},
		{nil, "[::1]:80", true},
		{nil, "10.0.0.1:80", true},
		{nil, "0.0.0.0:80", false},
		{nil, "169.254.169.254:80", false},
		{[]string{"10.1.0.0/16"}, "127.0.0.1:80", true},
		{[]string{"10.1.0.0/16"}, "10.2.0.1:80", false},
	} {
		if got := NewAllowList(rules(t, c.rules...), true, nil).allows(netip.MustParseAddrPort(c.to)); got != c.want {
			t.Errorf("%q and loopback: %s allowed: %v", c.rules, c.to, got)
		}
	}
	if NewAllowList(nil, false, nil).allows(netip.MustParseAddrPort("127.0.0.1:80")) {
		t.Error("the switch has changed the private ranges")
	}
}

// Services that hand out credentials stand within the private ranges of several clouds.
func TestMetadataServices(t *testing.T) {
	for cloud, addr := range map[string]string{
		"AWS": "fd00:ec2::254", "AWS, pod identity": "fd00:ec2::23", "Google": "fd20:ce::254", "Oracle": "fd00:c1::a9fe:a9fe",
		"Scaleway": "fd00:42::42", "Akamai": "fd00:a9fe:a9fe::1", "Alibaba": "100.100.100.200", "Alibaba, IPv6": "fd00:100::100:200",
	} {
		to := netip.AddrPortFrom(netip.MustParseAddr(addr), 80)
		for _, rules := range [][]AllowRule{nil, {{Prefix: netip.MustParsePrefix("::/0")}, {Prefix: netip.MustParsePrefix("0.0.0.0/0")}}} {
			if NewAllowList(rules, false, nil).allows(to) {
				t.Errorf("%s's %s may be asked by %v", cloud, addr, rules)
			}
		}
		if !NewAllowList([]AllowRule{{Prefix: netip.PrefixFrom(to.Addr(), to.Addr().BitLen())}}, false, nil).allows(to) {
			t.Errorf("%s's %s is refused although it is listed", cloud, addr)
		}
	}
}

// TestAllowPods: with pods to go by, an address must be one of theirs and allowed by the rules; without rules, only addresses that
// no rule for a whole range allows are refused.
func TestAllowPods(t *testing.T) {
	pods := func(addr netip.Addr) bool {
		return slices.Contains([]string{"10.0.0.1", "203.0.113.1", "2001:db8::1", "169.254.169.254", "127.0.0.1"}, addr.String())
	}
	for _, c := range []struct {
		name     string
		rules    []string
		loopback bool
		to       string
		want     bool
	}{
		{"a pod", nil, false, "10.0.0.1:8000", true},
		{"no pod", nil, false, "10.0.0.2:8000", false},
		{"a pod outside the private ranges", nil, false, "203.0.113.1:8000", true},
		{"a pod with an IPv6 address", nil, false, "[2001:db8::1]:8000", true},
		{"a pod's IPv4 address as IPv6", nil, false, "[::ffff:10.0.0.1]:8000", true},
		{"a pod that claims the metadata service's address", nil, false, "169.254.169.254:80", false},
		{"a pod that claims loopback", nil, false, "127.0.0.1:80", false},
		{"a pod that the rules allow", []string{"10.0.0.0/8:8000"}, false, "10.0.0.1:8000", true},
		{"another port of it", []string{"10.0.0.0/8:8000"}, false, "10.0.0.1:22", false},
		{"a pod that the rules do not allow", []string{"10.0.0.0/8:8000"}, false, "203.0.113.1:8000", false},
		{"what the rules allow and is no pod", []string{"10.0.0.0/8:8000"}, false, "10.0.0.2:8000", false},
		{"loopback by the switch", nil, true, "127.0.0.2:80", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, to := NewAllowList(rules(t, c.rules...), c.loopback, pods), netip.MustParseAddrPort(c.to)
			if got := list.allows(to); got != c.want {
				t.Errorf("allows(%s) is %v", to, got)
			}
			if err := list.Control(t.Context(), "tcp", to.String(), nil); (err == nil) != c.want {
				t.Errorf("Control(%s) is %v", to, err)
			}
		})
	}
}
