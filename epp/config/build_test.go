package config

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// journal is what happened to the plugins of a test, in order.
type journal struct{ events []string }

func (j *journal) add(format string, args ...any) {
	j.events = append(j.events, fmt.Sprintf(format, args...))
}

// part is a plugin of tests.
type part struct {
	Needs  []string `yaml:"needs"` // names of other plugins
	Fails  bool     `yaml:"fails"`
	Sticks bool     `yaml:"sticks"` // cannot be closed

	j      *journal
	become func(n *base) any
}

// base is the closable part of every instance.
type base struct {
	name   string
	sticks bool
	j      *journal
}

func (n *base) Close() error {
	n.j.add("close %s", n.name)
	if n.sticks {
		return errors.New("it sticks")
	}
	return nil
}

func (p *part) Problems(epp.Report) {}

func (p *part) References() map[string]string {
	refs := map[string]string{}
	for i, name := range p.Needs {
		refs[fmt.Sprintf("needs[%d]", i)] = name
	}
	return refs
}

func (p *part) Build(b *epp.Builder) (any, error) {
	for _, name := range p.Needs {
		if _, ok := b.Instance(name); !ok {
			return nil, fmt.Errorf("%s is not there", name)
		}
	}
	if _, ok := b.Instance("undeclared"); ok {
		return nil, errors.New("an instance that was not asked for")
	}
	if p.Fails {
		return nil, errors.New("it fails\nin two lines")
	}
	p.j.add("build %s", b.Name)
	return p.become(&base{b.Name, p.Sticks, p.j}), nil
}

type (
	aFilter  struct{ *base }
	aScorer  struct{ *base }
	aPicker  struct{ *base }
	aDecider struct {
		*base
		_ [0]func() // deciders need not be comparable
	}
	aMatcher struct{ *base }
	aCharger struct{ *base }
	aHandler struct {
		*base
		decider epp.Decider
	}
)

func (aFilter) Filter(_ *epp.Round, c []epp.Candidate) []epp.Candidate { return c }
func (aScorer) Score(*epp.Round, []epp.Candidate, []float64)           {}
func (aPicker) Pick(_ *epp.Round, _ []float64, _ int, dst []int) []int { return dst }
func (aPicker) Endpoints() int                                         { return 1 }
func (aDecider) Decide(*epp.Alternatives) epp.Ruling {
	return epp.Ruling{Verdict: pd.Remote, Reason: pd.Always}
}
func (aMatcher) Needs() epp.PromptSpec                                     { return epp.PromptSpec{} }
func (aMatcher) Match(*epp.Request, *epp.Prompt, []epp.Candidate) int      { return 0 }
func (aMatcher) Learn(*epp.Request, *epp.Prompt, *epp.Endpoint, *epp.Load) {}
func (aMatcher) EndpointJoined(*epp.Endpoint)                              {}
func (aMatcher) EndpointLeft(*epp.Endpoint)                                {}
func (aCharger) Charge() epp.Charge                                        { return epp.Charge{OutputRatio: 7} }
func (h aHandler) Stages([]string) (epp.Stages, error) {
	row := epp.PrefillRow("default", 1)
	row.Decider = epp.NamedDecider{Name: "decider", Decider: h.decider}
	return epp.Stages{epp.DecodeRow("default"), row}, nil
}

// parts returns a table of plugin types that do nothing.
func parts(j *journal) (rows []epp.Row) {
	types := map[string]func(n *base) any{
		"filter":   func(n *base) any { return aFilter{n} },
		"scorer":   func(n *base) any { return aScorer{n} },
		"decider":  func(n *base) any { return aDecider{base: n} },
		"matcher":  func(n *base) any { return aMatcher{n} },
		"charger":  func(n *base) any { return aCharger{n} },
		"handler":  func(n *base) any { return aHandler{n, aDecider{}} },
		typePicker: func(n *base) any { return aPicker{n} },

		"the-discovery":   func(n *base) any { return n },
		typeMetrics:       func(n *base) any { return n },
		typeExtractor:     func(n *base) any { return n },
		typeSingleHandler: func(n *base) any { return aHandler{base: n} },
	}
	for name, become := range types {
		rows = append(rows, epp.Row{Type: name, New: func() epp.Plugin { return &part{j: j, become: become} }})
	}
	return rows
}

// parseParts parses a configuration of parts, given without its first two lines and what Parse did to them.
func parseParts(t *testing.T, j *journal, text string) *Config {
	t.Helper()
	c, err := Parse([]byte("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"+text), parts(j))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var quiet = slog.New(slog.DiscardHandler)

// TestBuild: instances in the order of their references, each in its place; closed in reverse.
func TestBuild(t *testing.T) {
	var j journal
	c := parseParts(t, &j, `
plugins:
  - {type: handler, parameters: {needs: [matcher, decider]}}
  - {type: decider}
  - {type: matcher, parameters: {needs: [scorer]}}
  - {type: scorer}
  - {type: filter}
  - {type: charger}
  - {type: the-discovery}
  - {type: max-score-picker}
dataLayer: {discovery: {pluginRef: the-discovery}}
`)
	built := []string{"scorer", "matcher", "decider", "handler", "filter", "charger", "the-discovery", "max-score-picker", typeMetrics, typeExtractor}
	checkLife(t, &j, built) // for a look, in Parse
	b, err := c.Build(quiet, &epp.Keep{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range b.Instances {
		names = append(names, i.Name)
	}
	if !slices.Equal(names, built) {
		t.Errorf("instances %q, want %q", names, built)
	}
	if len(b.Profiles) != 1 || b.Profiles[0].Name != "default" || len(b.Profiles[0].Filters) != 1 || len(b.Profiles[0].Scorers) != 1 ||
		b.Profiles[0].Filters[0].Name != "filter" || b.Profiles[0].Scorers[0].Weight != 1 || b.Profiles[0].Picker == nil {
		t.Errorf("profiles %+v", b.Profiles)
	}
	if len(b.Matchers) != 1 || b.Charge.OutputRatio != 7 || b.Discovery == nil || b.Stages[1].Decider.Name != "decider" {
		t.Errorf("built %+v", b)
	}
	if got := Of[epp.Scorer](b); len(got) != 1 {
		t.Errorf("%d scorers", len(got))
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	checkLife(t, &j, built)
}

// TestMatchersInOrder: the first one, which plugins that name none read, is that with llm-d's default name.
func TestMatchersInOrder(t *testing.T) {
	for plugins, want := range map[string]string{
		"[{type: matcher, name: b}, {type: matcher, name: a}]":                                                      "b a",
		"[{type: matcher, name: b}, {type: matcher, name: approx-prefix-cache-producer}, {type: matcher, name: a}]": "approx-prefix-cache-producer b a",
	} {
		b, err := parseParts(t, new(journal), "plugins: "+plugins).Build(quiet, &epp.Keep{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, m := range b.Matchers {
			names = append(names, m.(aMatcher).name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: %s, want %s", plugins, got, want)
		}
	}
}

// checkLife checks that plugins were built in this order and closed in reverse, and empties the journal.
func checkLife(t *testing.T, j *journal, built []string) {
	t.Helper()
	var want []string
	for _, name := range built {
		want = append(want, "build "+name)
	}
	for _, name := range slices.Backward(built) {
		want = append(want, "close "+name)
	}
	if !slices.Equal(j.events, want) {
		t.Errorf("happened %q, want %q", j.events, want)
	}
	j.events = nil
}

// TestBuildFails: the instances built before the failure are closed, and the error names both failures.
func TestBuildFails(t *testing.T) {
	var j journal
	c := parseParts(t, &j, "plugins: [{type: filter}, {type: scorer, parameters: {sticks: false}}, {type: matcher}]")
	j.events = nil
	c.plugins[1].params.(*part).Sticks = true // what lay outside has changed
	c.plugins[2].params.(*part).Fails = true
	_, err := c.Build(quiet, &epp.Keep{})
	const want = "building plugin matcher: it fails\nin two lines (then closing plugin scorer: it sticks)"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	checkLife(t, &j, []string{"filter", "scorer"})
}

func TestTrouble(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"circle", "plugins:\n  - {name: a, type: filter, parameters: {needs: [b]}}\n  - {name: b, type: filter, parameters: {needs: [c]}}\n  - {name: c, type: filter, parameters: {needs: [b]}}",
			`line 5: plugins[1]: plugins refer to each other in a circle: "b" → "c" → "b"`},
		{"itself", "plugins:\n  - {name: a, type: filter, parameters: {needs: [a]}}",
			`line 4: plugins[0]: plugins refer to each other in a circle: "a" → "a"`},
		{"a plugin that fails", "plugins:\n  - {type: filter, parameters: {needs: [scorer]}}\n  - {type: scorer, parameters: {fails: true}}",
			"line 5: plugins[1]: it fails; in two lines"},
		{"may be the handler", "plugins:\n  - {type: handler, parameters: {fails: true}}\nschedulingProfiles: [{name: a}, {name: b}]",
			"line 4: plugins[0]: it fails; in two lines"},
		{"may be the picker", "plugins:\n  - {name: p, type: max-score-picker, parameters: {fails: true}}\n  - {type: random}\nschedulingProfiles: [{name: a, plugins: [{pluginRef: p}]}]",
			"line 4: plugins[0]: it fails; in two lines\nline 5: plugins[1].type: there is no plugin type \"random\""},
		{"reference without effect", "plugins:\n  - {type: local-syncer}\n  - {type: filter, parameters: {needs: [local-syncer]}}",
			`line 5: plugins[1].parameters.needs[0]: "local-syncer" is a syncer of replicas, which has no effect`},
		{"discovery in a profile", "plugins: [{type: the-discovery}]\nschedulingProfiles:\n  - {name: a, plugins: [{pluginRef: the-discovery}]}",
			`line 5: schedulingProfiles[0].plugins[0].pluginRef: "the-discovery" is a discovery plugin; a profile has filters, scorers and a picker`},
		{"decider in a profile", "plugins: [{type: decider}]\nschedulingProfiles:\n  - {name: a, plugins: [{pluginRef: decider}]}",
			`line 5: schedulingProfiles[0].plugins[0].pluginRef: "decider" is a decider; a profile has filters, scorers and a picker`},
		{"syncer as discovery", "plugins: [{type: local-syncer}]\ndataLayer: {discovery: {pluginRef: local-syncer}}",
			`line 4: dataLayer.discovery.pluginRef: "local-syncer" is a syncer of replicas, want a discovery plugin`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var j journal
			_, err := Parse([]byte("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"+test.text), parts(&j))
			if errorText(err) != test.want {
				t.Errorf("got\n%v\nwant\n%s", err, test.want)
			}
			builds := slices.DeleteFunc(slices.Clone(j.events), func(e string) bool { return !strings.HasPrefix(e, "build") })
			if len(j.events) != 2*len(builds) {
				t.Errorf("not all was closed: %q", j.events)
			}
		})
	}
}

// TestMissingTypes: a table without a type that is added by default is reported once.
func TestMissingTypes(t *testing.T) {
	rows := slices.DeleteFunc(parts(&journal{}), func(r epp.Row) bool { return r.Type != "scorer" })
	_, err := Parse([]byte("apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: scorer}]"), rows)
	if want := "line 3: plugins: max-score-picker is needed (a profile has no picker), and there is no such plugin type"; errorText(err) != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
