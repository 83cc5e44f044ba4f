package sidecar

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// FuzzRoute: whatever the headers, a request goes to targets that are allowed or nowhere, one that must not be prefilled
// locally is not, and what is refused is refused with a reason. The engine sees none of it.
func FuzzRoute(f *testing.F) {
	const plan = "remote;id=0123456789abcdef;reason=uncached;strict=1;epp=0.1"
	f.Add("10.0.0.1:8000,10.0.0.2:8000", "", plan, "force", "a=b", "close")
	f.Add("127.0.0.1:1", "[fd00::1]:8000", "", "", "", "x-tandem-plan, te")
	f.Add("169.254.169.254:80", "", "local;id=0123456789abcdef;reason=short-prompt;strict=0;epp=1;report", "bypass", "", "")
	f.Add("prefill.models.svc:8000", "0x7f.1:80", "", "force;fallback", "m", "keep-alive")
	s := startRig(f, "127.0.0.1:9", func(c *Config, _ *Telemetry) { c.Trust.Allow = nil })
	f.Fuzz(func(t *testing.T, first, second, plan, mode, model, connection string) {
		h := http.Header{keyPrefill: {first}, "Connection": {connection}, "X-Prefiller-Host": {second}}
		for key, value := range map[string]string{keyPlan: plan, keyMode: mode, keyModel: model} {
			if value != "" {
				h.Set(key, value)
			}
		}
		if second != "" {
			h.Add(keyPrefill, second)
		}
		for name := range transport.LegHeader(h, "r") {
			if pd.Internal(name) {
				t.Errorf("the engine gets %s", name)
			}
		}
		r, err := s.readRoute(h)
		var refusal *pd.Refusal
		switch {
		case err != nil && (!errors.As(err, &refusal) || refusal.Reason == "" || refusal.Status() < 400):
			t.Fatalf("refused by %v", err)
		case err != nil:
			return
		case r.verdict == pd.Remote && len(r.targets) == 0, r.verdict == pd.Local && r.strict && r.plan == nil:
			t.Fatalf("%+v", r)
		}
		for _, target := range r.targets {
			addr, err := netip.ParseAddr(target.Host)
			addr = addr.Unmap()
			if err == nil && !addr.IsPrivate() && !netip.MustParsePrefix("100.64.0.0/10").Contains(addr) {
				t.Errorf("a leg may go to %v", target)
			}
		}
	})
}

// FuzzAllowRule: a rule that is taken prints as what is read as the same rule, and reaches no address outside its range.
func FuzzAllowRule(f *testing.F) {
	for _, rule := range []string{"10.0.0.0/8:8000", "[fd00::/8]:8000", "10.1.2.3", "::/0", "fe80::1%eth0", "[::1]", "10.0.0.0/8:*",
		"::ffff:10.0.0.1"} {
		f.Add(rule, "10.1.2.3:8000")
		f.Add(rule, "[::ffff:169.254.169.254]:80")
	}
	f.Fuzz(func(t *testing.T, text, to string) {
		var rule, again AllowRule
		if rule.UnmarshalText([]byte(text)) != nil {
			return
		}
		printed, err := rule.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		if err := again.UnmarshalText(printed); err != nil || again != rule {
			t.Fatalf("%q is %+v, printed as %q and read again as %+v, %v", text, rule, printed, again, err)
		}
		addr, err := netip.ParseAddrPort(to)
		if err != nil || !newAllowList([]AllowRule{rule}).has(addr) {
			return
		}
		ip := addr.Addr().Unmap().WithZone("")
		if !rule.Prefix.Contains(ip) || rule.Port != 0 && rule.Port != addr.Port() {
			t.Errorf("%+v lets %v pass", rule, addr)
		}
		if (ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsUnspecified()) && rule.Prefix.Bits() < 8 {
			t.Errorf("%+v lets %v pass", rule, addr)
		}
	})
}

// FuzzEventPipe: a stream comes out as it went in, byte for byte, whatever it is and however it is cut; where the count of
// cached tokens is corrected, nothing else changes.
func FuzzEventPipe(f *testing.F) {
	const usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"prompt_tokens_details\":{\"cached_tokens\":32}}}\n\n"
	for i, stream := range []string{wholeStream, firstEvent + usage + doneEvent, errorEvent, ": ping\n\ndata: {}\r\n\r\ndata:[DONE]\n\n", "data: {\n\n\xff", usage[:40]} {
		f.Add([]byte(stream), uint8(i+1), i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, stream []byte, size uint8, corrects bool) {
		out := httptest.NewRecorder()
		x := &exchange{w: out, ctx: context.Background()}
		if corrects {
			x.decision.Verdict, x.hand.taken = pd.Remote, true
			x.hand.offer = dialect.Offer{Handoff: pd.Handoff{Cached: -1}, CachedTokens: 7} // an engine that hands no count over
		}
		p := &eventPipe{x: x, events: body.Events{Limit: maxEvent}}
		for rest := stream; len(rest) > 0; {
			n := min(len(rest), int(size)+1)
			if err := p.pass(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		got := append(out.Body.Bytes(), p.events.Pending()...)
		if !corrects {
			if !bytes.Equal(got, stream) {
				t.Fatalf("%q became %q", stream, got)
			}
			return
		}
		before, after := strings.Split(string(stream), "\n"), strings.Split(string(got), "\n")
		if len(before) != len(after) {
			t.Fatalf("%q became %q", stream, got)
		}
		for i := range before {
			mustDifferInCached(t, before[i], after[i])
		}
	})
}

// mustDifferInCached fails unless a line is the same but for its count of cached tokens. A control character within a text is
// no JSON, but it harms nobody that the count beside it is corrected all the same.
func mustDifferInCached(t *testing.T, before, after string) {
	t.Helper()
	if before == after {
		return
	}
	var was, is map[string]any
	bare := func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}
	_, a, _ := strings.Cut(strings.Map(bare, before), ":")
	_, b, _ := strings.Cut(strings.Map(bare, after), ":")
	if json.Unmarshal([]byte(a), &was) != nil || json.Unmarshal([]byte(b), &is) != nil {
		t.Fatalf("%q became %q", before, after)
	}
	for _, document := range []map[string]any{was, is} {
		usage, _ := document["usage"].(map[string]any)
		details, _ := usage["prompt_tokens_details"].(map[string]any)
		delete(details, "cached_tokens")
	}
	if !reflect.DeepEqual(was, is) {
		t.Fatalf("%q became %q", before, after)
	}
}
