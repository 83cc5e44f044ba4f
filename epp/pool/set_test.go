package pool

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// specOf makes a spec of the name and address in the namespace default.
func specOf(name, addr string) epp.Spec {
	return epp.Spec{Namespace: "default", Name: name, Addr: netip.MustParseAddrPort(addr)}
}

func withLabel(s epp.Spec, name, value string) epp.Spec {
	s.Labels = map[string]string{name: value}
	return s
}

// inFlight charges an endpoint with one request.
func inFlight(e *epp.Endpoint) *epp.Reservation {
	return epp.ReserveAnyway(epp.Claim{Endpoint: e, Add: epp.InFlight{Requests: 1}})
}

func (s *set) names() (names []string) {
	for _, m := range s.members {
		names = append(names, m.Name)
	}
	return names
}

func (s *set) member(name string) *member {
	for _, m := range s.members {
		if m.Name == name {
			return m
		}
	}
	return nil
}

func noForget(*epp.Endpoint) {}

func TestSetKeepsListedEndpoints(t *testing.T) {
	var s set
	now := time.Now()
	a, b := specOf("a", "10.0.0.1:8000"), specOf("b", "10.0.0.2:8000")
	s.apply([]epp.Spec{b, a}, now)
	first := s.member("a")
	c, problems := s.apply([]epp.Spec{a, b, specOf("0", "10.0.0.3:8000")}, now)
	if s.member("a") != first || len(c.added) != 1 || len(c.removed) != 0 || len(problems) != 0 {
		t.Errorf("got %+v, %v", c, problems)
	}
	if got := s.names(); !slices.Equal(got, []string{"0", "a", "b"}) {
		t.Errorf("order %v", got)
	}
	if c, _ := s.apply([]epp.Spec{b, specOf("0", "10.0.0.3:8000"), a}, now); c.any() {
		t.Errorf("the same pool in another order is a change: %+v", c)
	}
}

// TestSetChanges: the engine at an address stays the same endpoint, whatever its name or labels are.
func TestSetChanges(t *testing.T) {
	load := new(epp.Load)
	*load = only(epp.Running, 3)
	base := specOf("a", "10.0.0.1:8000")
	cases := []struct {
		name    string
		changed epp.Spec
		version bool      // of the same endpoint
		load    *epp.Load // that the new one begins with
	}{
		{"labels", withLabel(base, pd.RoleLabel, "prefill"), true, load},
		{"metrics", epp.Spec{Namespace: base.Namespace, Name: "a", Addr: base.Addr, Metrics: "10.0.0.1:9000"}, true, &epp.Load{}},
		{"address", specOf("a", "10.0.0.9:8000"), false, &epp.Load{}},
		{"name", specOf("b", "10.0.0.1:8000"), false, &epp.Load{}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var s set
			now := time.Now()
			s.apply([]epp.Spec{base}, now)
			old := s.members[0]
			old.load.Store(load)
			running := inFlight(old.Endpoint)
			got, _ := s.apply([]epp.Spec{c.changed}, now)
			fresh := s.members[0]
			if fresh == old || len(got.added) != 1 {
				t.Fatalf("got %+v", got)
			}
			left, renewed := got.removed, got.renewed
			if c.version {
				left, renewed = renewed, left
			}
			if len(left) != 1 || left[0] != old || len(renewed) != 0 || len(s.gone) == 0 != c.version {
				t.Errorf("removed %v, renewed %v, gone %v", got.removed, got.renewed, s.gone)
			}
			if fresh.Is(old.Endpoint) != c.version || fresh.Slot == old.Slot != c.version || *fresh.load.Load() != *c.load {
				t.Errorf("slot %d after %d, load %+v, want %+v", fresh.Slot, old.Slot, fresh.load.Load(), c.load)
			}
			if got := fresh.InFlight().Requests; got == 1 != c.version {
				t.Errorf("%d requests in flight", got)
			}
			running.End()
			if a, b := old.InFlight(), fresh.InFlight(); a != (epp.InFlight{}) || b != a {
				t.Errorf("in flight after the end: %v, %v", a, b)
			}
		})
	}
}

func TestSetTakesBackReturningEndpoints(t *testing.T) {
	var s set
	now := time.Now()
	a := specOf("a", "10.0.0.1:8000")
	s.apply([]epp.Spec{a}, now)
	first := s.member("a")
	s.apply(nil, now)
	if s.sweep(now.Add(30*time.Second), time.Minute, noForget) {
		t.Error("dropped before its quarantine was over")
	}
	if c, _ := s.apply([]epp.Spec{a}, now); s.member("a") != first || len(c.added) != 1 || len(s.gone) != 0 {
		t.Errorf("it is not the same after a short absence: %+v", c)
	}
	s.apply(nil, now)
	s.apply([]epp.Spec{withLabel(a, pd.RoleLabel, "prefill")}, now)
	second := s.member("a")
	if second == first || !second.Is(first.Endpoint) || second.Slot != first.Slot || second.Role != pd.RolePrefill || len(s.gone) != 0 {
		t.Errorf("it is no new version after a short absence: %+v", second)
	}
	s.apply(nil, now)
	s.sweep(now.Add(time.Minute), time.Minute, noForget)
	s.sweep(now.Add(time.Minute), time.Minute, noForget)
	s.apply([]epp.Spec{a}, now)
	if s.member("a").Is(first.Endpoint) {
		t.Error("it is the same although nothing ran on it when its slot was given up")
	}
}

// TestSetKeepsRequestsOfReturningPods: a pod that was not ready for long, and is again, still has its requests, though its slot is
// another's by now.
func TestSetKeepsRequestsOfReturningPods(t *testing.T) {
	var s set
	now := time.Now()
	a, b := specOf("a", "10.0.0.1:8000"), specOf("b", "10.0.0.2:8000")
	s.apply([]epp.Spec{a}, now)
	first := s.member("a")
	running := inFlight(first.Endpoint)
	s.apply(nil, now)
	s.sweep(now.Add(2*time.Minute), time.Minute, noForget)
	s.apply([]epp.Spec{b}, now)
	s.apply([]epp.Spec{a, b}, now)
	second := s.member("a")
	if !second.Is(first.Endpoint) || second.Slot == s.member("b").Slot || len(s.gone) != 0 || second.InFlight().Requests != 1 {
		t.Errorf("%+v after %+v, beside %+v", second, first, s.member("b"))
	}
	running.Served(second.Endpoint)
	running.End()
	if got := second.InFlight(); got != (epp.InFlight{}) {
		t.Errorf("in flight after the end: %v", got)
	}
}

func TestSlots(t *testing.T) {
	var s set
	now := time.Now()
	var specs []epp.Spec
	for i := range 4 {
		specs = append(specs, specOf(fmt.Sprint(i), fmt.Sprintf("10.0.0.%d:8000", i)))
	}
	s.apply(specs, now)
	for i, m := range s.members {
		if m.Slot != i {
			t.Errorf("slot %d of endpoint %d", m.Slot, i)
		}
	}
	s.apply(specs[2:], now) // 0 and 1 rest
	x, y := specOf("x", "10.0.1.1:1"), specOf("y", "10.0.1.2:1")
	s.apply(append(specs[2:], x), now)
	if got := s.member("x").Slot; got != 4 {
		t.Errorf("slot %d given while 0 and 1 rest, want 4", got)
	}
	var forgotten []int
	s.sweep(now.Add(time.Minute), time.Minute, func(e *epp.Endpoint) { forgotten = append(forgotten, e.Slot) })
	s.apply(append(specs[2:], x, y), now)
	if got := s.member("y").Slot; got != 0 || !slices.Equal(forgotten, []int{0, 1}) {
		t.Errorf("slot %d after %v were forgotten, want 0 after [0 1]", got, forgotten)
	}
}

func TestGoneCanBeFoundWhileRequestsRun(t *testing.T) {
	var s set
	now := time.Now()
	busy, idle := specOf("busy", "10.0.0.1:8000"), specOf("idle", "10.0.0.2:8000")
	s.apply([]epp.Spec{busy, idle}, now)
	old := s.member("busy").Endpoint
	running := inFlight(old)
	s.apply(nil, now)
	sweep := func(after time.Duration) (found []string) {
		s.sweep(now.Add(after), time.Minute, noForget)
		s.sweep(now.Add(after), time.Minute, noForget)
		for addr := range s.index() {
			found = append(found, addr.String())
		}
		slices.Sort(found)
		return found
	}
	if got := sweep(time.Second); len(got) != 2 {
		t.Errorf("found %v at once, want both", got)
	}
	if got := sweep(2 * time.Minute); !slices.Equal(got, []string{"10.0.0.1:8000"}) {
		t.Errorf("found %v, want the busy one", got)
	}
	s.apply([]epp.Spec{specOf("new", "10.0.0.1:8000")}, now)
	if got := s.index()[busy.Addr]; got == old || got.Name != "new" {
		t.Errorf("its address now belongs to %v", got)
	}
	s.apply(nil, now)
	running.End()
	if got := sweep(4 * time.Minute); len(got) != 0 {
		t.Errorf("found %v after the last request", got)
	}
	s.apply([]epp.Spec{busy}, now)
	inFlight(s.member("busy").Endpoint)
	s.apply(nil, now)
	if got := sweep(lingerMax); len(got) != 0 {
		t.Errorf("found %v after the longest time", got)
	}
}

func TestAdmit(t *testing.T) {
	a := specOf("a", "10.0.0.1:8000")
	other := a
	other.Namespace = "other"
	cases := []struct {
		name    string
		specs   []epp.Spec
		want    []string // namespace/name
		problem string
	}{
		{"all is well", []epp.Spec{specOf("b", "[2001:db8::1]:1"), a}, []string{"default/a", "default/b"}, ""},
		{"default namespace", []epp.Spec{{Name: "a", Addr: a.Addr}}, []string{"default/a"}, ""},
		{"same name elsewhere", []epp.Spec{a, {Namespace: "other", Name: "a", Addr: netip.MustParseAddrPort("10.0.0.2:1")}}, []string{"default/a", "other/a"}, ""},
		{"same name", []epp.Spec{a, specOf("a", "10.0.0.2:8000")}, []string{"default/a"}, "default/a is there twice; the one at 10.0.0.2:8000 is left out"},
		{"same address", []epp.Spec{other, a}, []string{"default/a"}, "other/a has the address 10.0.0.1:8000 of default/a"},
		{"same address in IPv6", []epp.Spec{a, specOf("b", "[::ffff:10.0.0.1]:8000")}, []string{"default/a"}, "default/b has the address"},
		{"no name", []epp.Spec{specOf("", "10.0.0.1:8000")}, nil, "the endpoint at 10.0.0.1:8000 has no name"},
		{"no address", []epp.Spec{{Name: "a"}}, nil, "default/a has no address"},
		{"no port", []epp.Spec{specOf("a", "10.0.0.1:0")}, nil, "default/a has no address"},
		{"unknown role", []epp.Spec{withLabel(a, pd.RoleLabel, "chef")}, []string{"default/a"}, `its role is "chef"`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			before := slices.Clone(c.specs)
			specs, problems := admit(c.specs)
			var got []string
			for _, s := range specs {
				got = append(got, s.Namespace+"/"+s.Name)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("admitted %v, want %v", got, c.want)
			}
			if c.problem == "" && len(problems) > 0 || c.problem != "" && (len(problems) != 1 || !strings.Contains(problems[0], c.problem)) {
				t.Errorf("problems %q, want %q", problems, c.problem)
			}
			for i := range before {
				if before[i].Name != c.specs[i].Name {
					t.Error("the caller's specs were reordered")
				}
			}
		})
	}
}

// TestSetOverTime applies random pools and checks after each that slots are distinct and dense enough, that the order
// holds, and that every endpoint can be found.
func TestSetOverTime(t *testing.T) {
	rnd, now, most := rand.New(rand.NewPCG(1, 2)), time.Now(), 0
	var s set
	for range 2000 {
		now = now.Add(time.Duration(rnd.IntN(20)) * time.Second)
		var specs []epp.Spec
		for i := range 12 {
			if rnd.IntN(3) > 0 {
				spec := specOf(fmt.Sprint(i), fmt.Sprintf("10.0.0.%d:8000", i))
				specs = append(specs, withLabel(spec, "version", fmt.Sprint(rnd.IntN(8)/7)))
			}
		}
		s.apply(specs, now)
		s.sweep(now, time.Minute, noForget)
		taken, byAddr := map[int]bool{}, s.index()
		for _, d := range s.gone {
			if d.resting {
				taken[d.Slot] = true
			}
		}
		most = max(most, len(taken)+len(s.members))
		for _, m := range s.members {
			if taken[m.Slot] {
				t.Fatalf("slot %d is used twice", m.Slot)
			}
			taken[m.Slot] = true
			if m.Slot >= most {
				t.Fatalf("slot %d, though there were never more than %d", m.Slot, most)
			}
			if byAddr[m.Addr] != m.Endpoint {
				t.Fatalf("%v cannot be found", m)
			}
		}
		if len(s.members) != len(specs) || !slices.IsSorted(s.names()) {
			t.Fatalf("members %v of %d specs", s.names(), len(specs))
		}
	}
}
