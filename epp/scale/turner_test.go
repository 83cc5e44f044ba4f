package scale

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/epp/latency"
	"github.com/tandem-serving/tandem/pd"
)

// turning is a turner with endpoints, and a clock.
type turning struct {
	*Turner
	t         *testing.T
	clock     *handClock
	endpoints []*epp.Endpoint
	log       *bytes.Buffer
}

// startTurner has one endpoint for each role, such as both.
func startTurner(t *testing.T, roles ...string) *turning {
	t.Helper()
	log := new(bytes.Buffer)
	s := &turning{t: t, clock: &handClock{}, log: log}
	s.Turner = s.make(new(Turns))
	for i, role := range roles {
		s.join(fmt.Sprintf("pod-%d", i), role)
	}
	return s
}

func (s *turning) make(state *Turns) *Turner {
	turner := NewTurner(TurnConfig{Objective: wanted, Gain: 0.1}, state, latency.NewModel(s.clock), s.clock, slog.New(slog.NewTextHandler(s.log, nil)))
	s.t.Cleanup(func() {
		if err := turner.Close(); err != nil {
			s.t.Error(err)
		}
	})
	return turner
}

// join adds an endpoint, whose name may have the number of a rank after a slash.
func (s *turning) join(name, role string) {
	slot := len(s.endpoints)
	e := epp.NewEndpoint("default", name, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(slot)}), 8000), "", map[string]string{pd.RoleLabel: role})
	e.Pod, _, _ = strings.Cut(name, "/")
	e.Slot = slot
	s.endpoints = append(s.endpoints, e)
	s.EndpointJoined(e)
}

func (s *turning) leave(i int) {
	s.EndpointLeft(s.endpoints[i])
	s.endpoints = slices.Delete(s.endpoints, i, i+1)
}

// serve has ten requests in a second come for some minutes, whose prompts and answers have so many tokens, and end at once.
func (s *turning) serve(minutes, prompt, answer int) {
	s.t.Helper()
	picks := []epp.StagePick{{Row: &decodeRow, Endpoints: s.endpoints[:1]}, {Row: &prefillRow, Endpoints: s.endpoints[1:2], Seen: &epp.Seen{}}}
	for range minutes {
		for range 600 {
			d := &epp.Decision{Verdict: pd.Remote, Tokens: prompt, Picks: picks}
			s.Picked(nil, nil, d)
			s.Observe(&epp.Outcome{Decision: d, Result: &pd.AnswerSummary{End: pd.EndDone, Completion: int64(answer)}})
		}
		s.minute()
	}
}

func (s *turning) minute() {
	s.t.Helper()
	if !s.clock.advance() {
		s.t.Fatal("no timer is set")
	}
}

// kept returns the names of the endpoints that a filter keeps of all that a label allows for a stage.
func (s *turning) kept(f epp.Filter, stage epp.Stage, role pd.Role) (names []string) {
	var c []epp.Candidate
	for _, e := range s.endpoints {
		if e.Role.Has(role) {
			c = append(c, epp.Candidate{Endpoint: e})
		}
	}
	for _, one := range f.Filter(&epp.Round{Stage: stage}, c) {
		names = append(names, one.Name)
	}
	return names
}

func (s *turning) prefill() []string { return s.kept(s, epp.StagePrefill, pd.RolePrefill) }
func (s *turning) decode() []string  { return s.kept(s, epp.StageDecode, pd.RoleDecode) }

// metrics returns the values of the metrics by their names and roles.
func (s *turning) metrics() map[string]float64 { return metricsOf(s.t, s.Turner) }

func metricsOf(t *testing.T, turner *Turner) map[string]float64 {
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(turner)
	families, err := registry.Gather()
	if err != nil {
		t.Error(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			values[f.GetName()+" "+m.Label[0].GetValue()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return values
}

// Loads that need more prefill, and more decode.
const longPrompt, shortPrompt, longAnswer, shortAnswer = 8000, 100, 3000, 10

func TestRolesTurnWithTheLoad(t *testing.T) {
	s := startTurner(t, "both", "both", "both", "both", "both", "both")
	const all = 6
	doBoth := func(why string) {
		t.Helper()
		if p, d := s.prefill(), s.decode(); len(p) != all || len(d) != all {
			t.Fatalf("%s: %v prefill, %v decode: want all for both", why, p, d)
		}
	}
	doBoth("before any request")
	s.minute()
	doBoth("without requests")
	s.serve(patience-1, longPrompt, shortAnswer)
	doBoth("after too little time")
	s.serve(1, longPrompt, shortAnswer)
	if p, d := len(s.prefill()), len(s.decode()); p != all-1 || d != 1 {
		t.Fatalf("long prompts: %d prefill and %d decode, want all but one to prefill", p, d)
	}
	s.serve(20, longPrompt, shortAnswer)
	if m := s.metrics(); m["tandem_role_changes_total prefill"]+m["tandem_role_changes_total decode"] > 0 {
		t.Errorf("at a steady load pods turn:\n%s", s.log)
	}
	begun, before := s.clock.Now(), len(s.decode())
	for len(s.prefill()) > 1 {
		s.serve(1, shortPrompt, longAnswer)
		p, d := len(s.prefill()), len(s.decode())
		if p+d != all || d < before || d > before+1 {
			t.Fatalf("in one minute decode went from %d to %d, with %d prefill", before, d, p)
		}
		if d > before && s.clock.Since(begun) < patience*TurnInterval {
			t.Fatalf("a pod turned %v after the load changed", s.clock.Since(begun))
		}
		if before = d; s.clock.Since(begun) > reversal*6 {
			t.Fatalf("long answers: %d prefill and %d decode after an hour:\n%s", p, d, s.log)
		}
	}
	last := s.clock.Now()
	for len(s.prefill()) == 1 {
		if s.serve(1, longPrompt, shortAnswer); s.clock.Since(last) > reversal*6 {
			t.Fatal("no pod turns back within an hour")
		}
	}
	if took := s.clock.Since(last); took < reversal {
		t.Errorf("a pod turned back after %v, want %v at least", took, reversal)
	}
	if !strings.Contains(s.log.String(), `msg="a pod changes its role" pod=default/pod-`) || !strings.Contains(s.log.String(), `why="another split bears more requests" requests_per_second=`) {
		t.Errorf("the log does not say which pod turns, and why:\n%s", s.log)
	}
}

func TestFixedRolesNeverTurn(t *testing.T) {
	for _, test := range []struct {
		name            string
		roles           []string
		prompt, answer  int
		prefill, decode string
	}{
		{"no pod of both roles", []string{"prefill", "decode", "decode"}, longPrompt, shortAnswer, "pod-0", "pod-1 pod-2"},
		{"one of both, and both fixed: prefill", []string{"prefill", "decode", "both"}, longPrompt, shortAnswer, "pod-0 pod-2", "pod-1"},
		{"one of both, and both fixed: decode", []string{"prefill", "decode", "both"}, shortPrompt, longAnswer, "pod-0", "pod-1 pod-2"},
		{"one of both must decode", []string{"prefill", "prefill", "both"}, longPrompt, shortAnswer, "pod-0 pod-1", "pod-2"},
		{"one of both must prefill", []string{"decode", "both", "decode"}, shortPrompt, longAnswer, "pod-1", "pod-0 pod-2"},
		{"two of both", []string{"both", "both"}, longPrompt, shortAnswer, "pod-0", "pod-1"},
		{"one for everything", []string{"both", "encode"}, longPrompt, shortAnswer, "pod-0", "pod-0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := startTurner(t, test.roles...)
			s.serve(30, test.prompt, test.answer)
			if p, d := strings.Join(s.prefill(), " "), strings.Join(s.decode(), " "); p != test.prefill || d != test.decode {
				t.Errorf("%s prefill and %s decode, want %s and %s", p, d, test.prefill, test.decode)
			}
		})
	}
}

// TestWhichPodTurns: to prefill the one with the fewest answers, to decode the one with the fewest tokens of prompts.
func TestWhichPodTurns(t *testing.T) {
	s := startTurner(t, "both", "both", "both", "both")
	for i, f := range []epp.InFlight{{Requests: 5, Tokens: 100}, {Requests: 1, Tokens: 900}, {Requests: 3, Tokens: 500}, {Requests: 4, Tokens: 700}} {
		s.endpoints[i].ChargeOthers(epp.InFlight{}, f)
	}
	s.serve(patience, shortPrompt, longAnswer)
	if p := s.prefill(); !slices.Equal(p, []string{"pod-1"}) {
		t.Fatalf("%v prefills first, want the one with the fewest requests", p)
	}
	turn := func(role pd.Role, prompt, answer int) (name string) {
		before := s.prefill()
		for range 30 {
			s.serve(1, prompt, answer)
			now := s.prefill()
			for _, e := range s.endpoints {
				if slices.Contains(now, e.Name) != slices.Contains(before, e.Name) {
					return e.Name
				}
			}
		}
		t.Fatalf("no pod turns to %s", role)
		return ""
	}
	if name := turn(pd.RolePrefill, longPrompt, shortAnswer); name != "pod-2" {
		t.Errorf("%s turns to prefill, want pod-2, with the fewest answers of those that decode", name)
	}
	for len(s.prefill()) < 3 {
		s.serve(1, longPrompt, shortAnswer)
	}
	if name := turn(pd.RoleDecode, shortPrompt, longAnswer); name != "pod-2" {
		t.Errorf("%s turns to decode, want pod-2, with the fewest tokens of prompts of those that prefill", name)
	}
}

// TestRolesOfAPoolThatChanges: there is a pod of each role at any moment, also when the only one leaves.
func TestRolesOfAPoolThatChanges(t *testing.T) {
	s := startTurner(t, "both", "both", "both")
	s.serve(patience, longPrompt, shortAnswer)
	if d := s.decode(); !slices.Equal(d, []string{"pod-2"}) {
		t.Fatalf("%v decode, want pod-2", d)
	}
	s.leave(2)
	if p, d := s.prefill(), s.decode(); len(p) != 1 || len(d) != 1 || p[0] == d[0] {
		t.Fatalf("after the only one that decodes has left, %v prefill and %v decode", p, d)
	}
	if !strings.Contains(s.log.String(), `role=decode why="no other pod decodes"`) {
		t.Errorf("the log does not say why a pod turned:\n%s", s.log)
	}
	s.join("pod-3", "both")
	if p, d := s.prefill(), s.decode(); !slices.Contains(p, "pod-3") || !slices.Contains(d, "pod-3") {
		t.Errorf("a new pod does not do both until roles are considered: %v prefill and %v decode", p, d)
	}
	s.serve(1, longPrompt, shortAnswer)
	if p := s.prefill(); !slices.Contains(p, "pod-3") || len(p) != 2 {
		t.Errorf("long prompts: %v prefill, want the new pod among two", p)
	}
	s.leave(0)
	s.leave(0)
	if p, d := s.prefill(), s.decode(); len(p) != 1 || len(d) != 1 {
		t.Errorf("the last pod does not do both: %v prefill and %v decode", p, d)
	}
}

// TestCandidatesOfTheOtherRole: where no pod of a role is left among the candidates, those of the other role serve, and other stages are not filtered.
func TestCandidatesOfTheOtherRole(t *testing.T) {
	s := startTurner(t, "both", "both")
	s.serve(patience, longPrompt, shortAnswer)
	prefills := []epp.Candidate{{Endpoint: s.endpoints[0]}}
	if got := s.Filter(&epp.Round{Stage: epp.StageDecode}, slices.Clone(prefills)); len(got) != 1 {
		t.Error("the only candidate is dropped because it prefills")
	}
	if got := s.Filter(&epp.Round{Stage: epp.StageEncode}, []epp.Candidate{{Endpoint: s.endpoints[0]}, {Endpoint: s.endpoints[1]}}); len(got) != 2 {
		t.Error("the stage encode is filtered by roles")
	}
}

// TestRolesOutliveAReload: a new turner goes on with the roles of the one before it.
func TestRolesOutliveAReload(t *testing.T) {
	s := startTurner(t, "both", "both", "both")
	s.serve(patience, longPrompt, shortAnswer)
	next := s.make(s.Turns)
	metricsOf(t, next) // before it knows of endpoints
	for _, e := range s.endpoints {
		next.EndpointJoined(e)
	}
	if before, after := s.prefill(), s.kept(next, epp.StagePrefill, pd.RolePrefill); !slices.Equal(before, after) || len(after) != 2 {
		t.Errorf("after a reload %v prefill, before %v", after, before)
	}
}

// TestRanksTurnTogether: the endpoints of one pod have one role.
func TestRanksTurnTogether(t *testing.T) {
	s := startTurner(t)
	for pod := range 3 {
		for rank := range 2 {
			s.join(fmt.Sprintf("pod-%d/%d", pod, rank), "both")
		}
	}
	s.serve(patience, longPrompt, shortAnswer)
	if p, d := strings.Join(s.prefill(), " "), strings.Join(s.decode(), " "); p != "pod-0/0 pod-0/1 pod-1/0 pod-1/1" || d != "pod-2/0 pod-2/1" {
		t.Errorf("%s prefill and %s decode", p, d)
	}
	got, want := s.metrics(), map[string]float64{"tandem_role_pods both": 0, "tandem_role_pods decode": 1, "tandem_role_pods prefill": 2,
		"tandem_role_changes_total decode": 0, "tandem_role_changes_total prefill": 0}
	if !maps.Equal(got, want) {
		t.Errorf("metrics %v, want %v", got, want)
	}
}

// TestPicksWhileRolesTurn is for the race detector.
func TestPicksWhileRolesTurn(t *testing.T) {
	s := startTurner(t, "both", "both", "both")
	s.serve(1, longPrompt, shortAnswer)
	done := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if p, d := s.prefill(), s.decode(); len(p) == 0 || len(d) == 0 {
				t.Errorf("%v prefill and %v decode", p, d)
				return
			}
		}
	})
	group.Go(func() { s.metrics() })
	s.serve(patience, longPrompt, shortAnswer)
	s.EndpointLeft(s.endpoints[0])
	s.EndpointJoined(s.endpoints[0])
	close(done)
	group.Wait()
}
