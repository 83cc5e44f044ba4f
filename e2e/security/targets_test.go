package security

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/e2e/harness"
	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/stack"
)

// startDefaultSidecar runs a sidecar that may send prefill legs where it may by default, or as the flags say.
func startDefaultSidecar(t *testing.T, env []string, decode string, flags ...string) harness.Program {
	t.Helper()
	what, err := stack.Sidecar(harness.BinDir, decode, append([]string{"--log-level=debug"}, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	what.Args = slices.DeleteFunc(what.Args, func(arg string) bool { return arg == "--prefill-allow=127.0.0.0/8" })
	what.Env = env
	return harness.Start(t, what)
}

// TestSecurityPrefillTargets names prefill targets that a sidecar must not go to, in all the ways to spell an address.
func TestSecurityPrefillTargets(t *testing.T) {
	trap := startDecoy(t)
	decode := harness.NewTap(t, harness.StartSim(t, "decode", "--role=decode").Addr)
	port := trap.port()
	const denied, bad = "refused;reason=denied-target", "refused;reason=bad-request"
	const unresolved = "local;reason=prefill-failed;attempts=1;candidate=0" // no such name, or it is denied: depends on the resolver
	cases := []struct {
		name, target string
		decisions    []string
	}{
		{"loopback", "127.0.0.1:" + port, []string{denied}},
		{"all of loopback", "127.8.9.10:" + port, []string{denied}},
		{"IPv6 loopback", "[::1]:" + port, []string{denied}},
		{"loopback in IPv6", "[::ffff:127.0.0.1]:" + port, []string{denied}},
		{"loopback in IPv6, hex", "[::ffff:7f00:1]:" + port, []string{denied}},
		{"loopback in older IPv6", "[::127.0.0.1]:" + port, []string{denied}},
		{"unspecified", "0.0.0.0:" + port, []string{denied}},
		{"IPv6 unspecified", "[::]:" + port, []string{denied}},
		{"link-local", "169.254.1.1:80", []string{denied}},
		{"metadata", "169.254.169.254:80", []string{denied}},
		{"metadata in IPv6", "[::ffff:169.254.169.254]:80", []string{denied}},
		{"metadata behind a translator", "[64:ff9b::a9fe:a9fe]:80", []string{denied}},
		{"AWS's metadata", "[fd00:ec2::254]:80", []string{denied}},
		{"Alibaba's metadata", "100.100.100.200:80", []string{denied}},
		{"IPv6 link-local", "[fe80::1]:80", []string{denied}},
		{"with a zone", "[fe80::1%lo]:80", []string{bad}},
		{"with an escaped zone", "[fe80::1%25lo]:80", []string{bad}},
		{"public", "203.0.113.1:80", []string{denied}},
		{"public IPv6", "[2001:db8::1]:80", []string{denied}},
		{"multicast", "224.0.0.1:80", []string{denied}},
		{"broadcast", "255.255.255.255:80", []string{denied}},
		{"decimal", "2130706433:" + port, []string{bad}},
		{"short", "127.1:" + port, []string{bad}},
		{"octal", "0177.0.0.1:" + port, []string{bad}},
		{"hex", "0x7f000001:" + port, []string{denied, unresolved}},
		{"hex parts", "0x7f.0x0.0x0.0x1:" + port, []string{denied, unresolved}},
		{"a name of loopback", "localhost:" + port, []string{denied}},
		{"a name with a dot", "localhost.:" + port, []string{bad, denied}},
		{"a second that is denied", "10.255.255.1:80,127.0.0.1:" + port, []string{denied}},
		{"user", "admin@10.0.0.1:80", []string{bad}},
		{"password", "a:b@127.0.0.1:" + port, []string{bad}},
		{"scheme", "http://127.0.0.1:" + port, []string{bad}},
		{"path", "127.0.0.1:" + port + "/x", []string{bad}},
		{"query", "127.0.0.1:" + port + "?x", []string{bad}},
		{"no port", "10.0.0.1", []string{bad}},
		{"port zero", "10.0.0.1:0", []string{bad}},
		{"port too high", "10.0.0.1:65536", []string{bad}},
		{"port as a name", "10.0.0.1:http", []string{bad}},
		{"signed port", "10.0.0.1:+80", []string{bad}},
		{"empty", "", []string{bad}},
		{"empty candidate", "10.0.0.1:80,,", []string{bad}},
		{"too many", strings.TrimSuffix(strings.Repeat("10.0.0.1:80,", 100), ","), []string{bad}},
		{"IPv6 without brackets", "fd00::1:80", []string{bad}},
		{"brackets around IPv4", "[10.0.0.1]:80", []string{bad}},
		{"a long name", strings.Repeat("a.", 200) + "b:80", []string{bad}},
		{"white space", "127.0.0.1 :" + port, []string{bad}},
		{"no ASCII", "１２７.0.0.1:" + port, []string{bad}},
	}
	for _, allow := range []string{"", "0.0.0.0/0,::/0"} {
		var flags []string
		if allow != "" {
			flags = []string{"--prefill-allow=" + allow}
		}
		s := startDefaultSidecar(t, nil, decode.Addr, append(flags, "--fallback-burst=1000")...)
		for _, c := range cases {
			if allow != "" && strings.HasPrefix(c.name, "public") {
				continue // the operator allows this target
			}
			t.Run(fmt.Sprintf("%s allowed/%s", allow, c.name), func(t *testing.T) {
				q := rawRequest{"POST", pd.APICompletions.Path(), [][2]string{{"Content-Type", "application/json"}, {pd.HeaderPrefill, c.target}},
					`{"model":"m","prompt":"a","max_tokens":1}`}
				resp, text := q.mustSend(t, s.Addr("http"))
				if got := resp.Header.Get(pd.HeaderDecision); !slices.Contains(c.decisions, strings.Replace(got, ";attempts=1;candidate=0", "", 1)) &&
					!slices.Contains(c.decisions, got) {
					t.Errorf("decision %q, want one of %q: %s", got, c.decisions, text)
				}
				if resp.StatusCode >= 400 && strings.Contains(text, port) {
					t.Errorf("the refusal tells an address: %s", text)
				}
			})
		}
		t.Run(allow+" allowed/two headers", func(t *testing.T) {
			q := rawRequest{"POST", pd.APICompletions.Path(), [][2]string{{"Content-Type", "application/json"}, {pd.HeaderPrefill, "10.255.255.1:80"},
				{pd.HeaderPrefill, trap.addr}}, `{"model":"m","prompt":"a","max_tokens":1}`}
			if resp, _ := q.mustSend(t, s.Addr("http")); resp.Header.Get(pd.HeaderDecision) != denied {
				t.Errorf("decision %q", resp.Header.Get(pd.HeaderDecision))
			}
		})
	}
	trap.mustHaveNoConnection(t)
}

// TestSecurityRedirects has a prefill engine send the sidecar elsewhere: it does not go, and the client is served.
func TestSecurityRedirects(t *testing.T) {
	trap := startDecoy(t)
	decode := harness.StartSim(t, "decode", "--role=decode")
	for _, status := range []int{301, 302, 303, 307, 308} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Location", "http://"+trap.addr+r.URL.Path)
				w.WriteHeader(status)
			}))
			defer engine.Close()
			s := harness.StartSidecar(t, decode.Addr)
			q := harness.Call{API: pd.APICompletions, Text: "a", Tokens: 1}.Remote(engine.Listener.Addr().String())
			got := harness.MustSend(t, q, s.Addr("http"), "tiny")
			if got.Status != http.StatusOK || harness.Planned(got) != "local;reason=prefill-failed" {
				t.Errorf("status %d, decision %q: %s", got.Status, harness.Planned(got), got.Body)
			}
		})
	}
	trap.mustHaveNoConnection(t)
}

// TestSecurityProxyEnvironment has a proxy in the environment of the sidecar: legs do not go by it. net/http never asks one
// for loopback, so the leg goes to this machine by another address, where no program listens.
func TestSecurityProxyEnvironment(t *testing.T) {
	trap, here := startDecoy(t), ""
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
			here = p.Addr().String()
		}
	}
	if here == "" {
		t.Skip("this machine has no address but loopback")
	}
	var env []string
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		env = append(env, name+"=http://"+trap.addr)
	}
	env = append(env, "NO_PROXY=", "no_proxy=")
	s := startDefaultSidecar(t, env, harness.StartSim(t, "decode", "--role=decode").Addr, "--prefill-allow="+here)
	got := harness.MustSend(t, harness.Call{API: pd.APICompletions, Text: "a", Tokens: 1}.Remote(here+":9"), s.Addr("http"), "tiny")
	if got.Status != http.StatusOK || harness.Planned(got) != "local;reason=prefill-failed" {
		t.Errorf("status %d, decision %q: %s", got.Status, harness.Planned(got), got.Body)
	}
	trap.mustHaveNoConnection(t)
}
