package sched_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// versionedPool makes a pool of pods with engines of vLLM, given as role@version.
func versionedPool(pods ...string) *pool {
	s := &epp.Snapshot{Version: 1}
	for i, pod := range pods {
		role, version, _ := strings.Cut(pod, "@")
		labels := map[string]string{pd.RoleLabel: role}
		if version != "" {
			labels[epp.LabelEngineVersion] = version
		}
		e := epp.NewEndpoint("default", fmt.Sprintf("%s.%d", pod, i), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 8000), "", labels)
		e.Slot = i
		s.Endpoints, s.Loads = append(s.Endpoints, e), append(s.Loads, epp.Load{At: time.Now(), Connector: epp.ConnectorNIXL})
	}
	p := &pool{}
	p.at.Store(s)
	return p
}

// TestMismatchedPairs: no prefill pod is proposed whose KV caches the decode engine would refuse.
func TestMismatchedPairs(t *testing.T) {
	for _, c := range []struct {
		name string
		pods []string
		mode string
		want string // verdict/reason, and the prefill pods
	}{
		{"equal", []string{"decode@2", "prefill@2"}, "auto", "remote/uncached prefill@2.1"},
		{"not known", []string{"decode@2", "prefill"}, "auto", "remote/uncached prefill.1"},
		{"one of two", []string{"decode@2", "prefill@1", "prefill@2"}, "auto", "remote/uncached prefill@2.2"},
		{"in the middle of others", []string{"decode@2", "prefill@2", "prefill@1", "prefill@2"}, "auto", "remote/uncached prefill@2.1 prefill@2.3"},
		{"none", []string{"decode@2", "prefill@1"}, "auto", "local/no-prefill"},
		{"none, forced", []string{"decode@2", "prefill@1"}, "force", "refused/no-prefill"},
		{"none, forced or not", []string{"decode@2", "prefill@1"}, "force;fallback", "local/no-prefill"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var err error
			r := splitRequest(100)
			if r.Mode, err = pd.ParseMode([]string{c.mode}); err != nil {
				t.Fatal(err)
			}
			s := scheduler(t, versionedPool(c.pods...), sglangConfig())
			d, err := s.Pick(t.Context(), r)
			if got := pair(d, err); got != c.want {
				t.Errorf("picked %s, want %s", got, c.want)
			}
			if err == nil {
				d.Reservation.End()
			}
		})
	}
}

// pair returns the outcome and the prefill pods by their names, since ties are broken at random.
func pair(d *epp.Decision, err error) string {
	text := outcome(d, err)
	if err != nil || len(d.Picks) < 2 {
		return text
	}
	prefill := names(d.Picks[1].Endpoints)
	slices.Sort(prefill)
	return text + " " + strings.Join(prefill, " ")
}

// TestExplainsMismatchedPairs: the explanation says what does not match.
func TestExplainsMismatchedPairs(t *testing.T) {
	r := splitRequest(100)
	d, err := scheduler(t, versionedPool("decode@2", "prefill@1", "prefill@2"), sglangConfig()).Explain(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"prefill@2.2: chosen: the only candidate left",
		"decode@2.0: it is the decode endpoint itself",
		"prefill@1.1: dropped: the decode engine cannot read its KV caches: version: prefill 1, decode 2",
	}
	if got := lines(d.Trace.Stages[1]); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
