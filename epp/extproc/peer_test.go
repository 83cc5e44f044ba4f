package extproc

import (
	"slices"
	"strings"
	"testing"

	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/extproc/client"
	"github.com/tandem-serving/tandem/pd"
)

// ours are the headers of a request that only Tandem's sidecar may see, and the one that every sidecar may.
var ours = []string{pd.HeaderMode, pd.HeaderPlan, pd.HeaderAuth, pd.HeaderModel, pd.HeaderPrefill}

// TestHeadersByPeer: engines, and sidecars that are not Tandem's, get nothing of Tandem's, and the shared secret least of all.
func TestHeadersByPeer(t *testing.T) {
	const all = "x-tandem-pd x-tandem-plan x-tandem-auth x-tandem-model x-prefiller-host-port"
	for _, c := range []struct {
		name   string
		peer   epp.Peer
		always bool
		secret bool
		want   string
	}{
		{"Tandem's sidecar", epp.PeerTandem, false, true, all},
		{"Tandem's sidecar, without a secret", epp.PeerTandem, false, false, strings.Replace(all, "x-tandem-auth ", "", 1)},
		{"another", epp.PeerOther, false, true, "x-prefiller-host-port"},
		{"another, without a secret", epp.PeerOther, false, false, "x-prefiller-host-port"},
		{"not known", epp.PeerUnknown, false, false, "x-prefiller-host-port"},
		{"not known, with a secret that Tandem's would ask for", epp.PeerUnknown, false, true, ""},
		{"not known, but all are Tandem's", epp.PeerUnknown, true, true, all},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, mark := range []client.Mark{"", client.MarkPicker} {
				p := remotePool()
				p.endpoints[0].SetPeer(c.peer, false, false)
				r := startRig(t, p, setting(func(f *Config) {
					f.AllTakePlans = c.always
					if c.secret {
						f.Auth = func() string { return "open-sesame" }
					}
				}), rewriting)
				header := map[string]string{}
				s := r.open(t, mark)
				s.send(chat(more, pd.HeaderMode, "auto"), requestBody(ends, prompt))
				header[pd.HeaderMode] = "auto"
				apply(header, s.recv())
				s.recv() // the body
				if mark == client.MarkPicker {
					if header[pd.HeaderPlan] == "" {
						t.Error("the accountant does not learn of the plan")
					}
					s.rest()
					acct := r.open(t, client.MarkAcct)
					fields := []string{":method", "POST", ":path", "/v1/chat/completions"}
					for name, value := range header {
						fields = append(fields, name, value)
					}
					acct.send(requestHeaders(ends, fields...))
					apply(header, acct.recv())
					r.pool.mustLoad(t, "1/0 1/100 0/0") // it has the reservation
					acct.finish()
				} else {
					s.finish()
				}
				var got []string
				for _, name := range ours {
					if header[name] != "" {
						got = append(got, name)
					}
				}
				if !slices.Equal(got, strings.Fields(c.want)) {
					t.Errorf("filter %q: the endpoint gets %q, want %q", mark, got, c.want)
				}
			}
		})
	}
}

// TestRanksByPeer: sidecars that do not say that they read ranks would refuse a plan that names them.
func TestRanksByPeer(t *testing.T) {
	for _, takes := range []bool{true, false} {
		p := remotePool()
		p.choose = func(*epp.Request) (*epp.Decision, error) {
			d, err := p.remote(p.endpoints[0], p.endpoints[1])
			d.Picks[0].Ranks, d.Picks[1].Ranks = []pd.Rank{pd.RankOf(2)}, []pd.Rank{pd.RankOf(1)}
			return d, err
		}
		p.endpoints[0].SetPeer(epp.PeerTandem, takes, false)
		c := startRig(t, p, setting(func(f *Config) { f.AllTakePlans = true })).open(t, "")
		plan, err := pd.ParsePlan(c.decide()[pd.HeaderPlan])
		if err != nil {
			t.Fatal(err)
		}
		if named := plan.DecodeRank == pd.RankOf(2) && slices.Equal(plan.PrefillRanks, []pd.Rank{pd.RankOf(1)}); named != takes || !named && plan.PrefillRanks != nil {
			t.Errorf("a sidecar that takes ranks (%t) gets the plan %v", takes, plan)
		}
		c.finish()
	}
}

// TestSourceTokensByPeer: the same for what a source has.
func TestSourceTokensByPeer(t *testing.T) {
	for takes, want := range map[bool]int{true: 640, false: 0} {
		p := remotePool()
		p.choose = func(*epp.Request) (*epp.Decision, error) {
			d, err := p.remote(p.endpoints[0], p.endpoints[1])
			d.PullFrom, d.PullTokens = p.endpoints[0], 640
			return d, err
		}
		p.endpoints[0].SetPeer(epp.PeerTandem, false, takes)
		c := startRig(t, p, setting(func(f *Config) { f.AllTakePlans = true })).open(t, "")
		got := c.decide()
		if plan, err := pd.ParsePlan(got[pd.HeaderPlan]); err != nil || plan.SourceTokens != want || got[pd.HeaderSource] == "" {
			t.Errorf("a sidecar that takes sources (%t) gets the plan %v of %q, %v", takes, plan, got[pd.HeaderSource], err)
		}
		c.finish()
	}
}

// apply changes headers of a request as an answer says.
func apply(header map[string]string, a *procv3.ProcessingResponse) {
	m := mutationOf(a)
	for _, name := range m.GetRemoveHeaders() {
		delete(header, name)
	}
	for _, o := range m.GetSetHeaders() {
		header[o.GetHeader().GetKey()] = string(o.GetHeader().GetRawValue())
	}
}
