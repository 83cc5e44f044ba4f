package intake

import (
	"errors"
	"net/http"
	"net/netip"
	"testing"

	"github.com/tandem-serving/tandem/pd"
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
	routes := RouteReader{Modes: true, Allow: NewAllowList(nil, false, nil), Budget: pd.NewFallbackBudget(pd.FallbackRatio, pd.FallbackBurst)}
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
		for name := range transport.Stripped(nil).LegHeader(h, "r") {
			if pd.Internal(name) {
				t.Errorf("the engine gets %s", name)
			}
		}
		r, err := routes.Read(h)
		var refusal *pd.Refusal
		switch {
		case err != nil && (!errors.As(err, &refusal) || refusal.Reason == "" || refusal.Status() < 400):
			t.Fatalf("refused by %v", err)
		case err != nil:
			return
		case r.Verdict == pd.Remote && len(r.Targets) == 0, r.Verdict == pd.Local && r.Strict && r.Plan == nil:
			t.Fatalf("%+v", r)
		}
		for _, target := range r.Targets {
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
		if err != nil || !NewAllowList([]AllowRule{rule}, false, nil).allows(addr) {
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
