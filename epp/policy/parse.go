package policy

import (
	"bytes"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/epp"
)

// The kinds of objects, and their API versions.
const (
	kindObjective = "InferenceObjective"
	kindRewrite   = "InferenceModelRewrite"
	kindList      = "List"
)

var versions = []string{"llm-d.ai/v1alpha2", "inference.networking.x-k8s.io/v1alpha2"}

// Parse reads a stream of objects. An empty stream is an empty policy. The error lists every problem on its own line.
func Parse(data []byte) (*epp.Policy, error) {
	r := reader{lines: make(map[string]int)}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		err := decoder.Decode(&doc)
		if err == io.EOF {
			break
		}
		if err != nil {
			r.add(strings.TrimPrefix(err.Error(), "yaml: "))
			break // the beginning of the next document is not known
		}
		if object := (value{to: &r.problems, node: doc.Content[0], line: doc.Content[0].Line}); object.there() {
			r.object(object)
		}
	}
	if err := r.err(); err != nil {
		return nil, err
	}
	return epp.NewPolicy(r.objectives, r.rewrites), nil
}

// reader makes objectives and rewrites from objects. If there is a problem, some may be invalid, and none is used.
type reader struct {
	problems
	objectives []epp.Objective
	rewrites   []epp.Rewrite
	lines      map[string]int // of objects, by kind and name
}

// object reads one object, or a list of them.
func (r *reader) object(v value) {
	r.of = ""
	f := v.fields("apiVersion", "kind", "metadata", "spec", "status", "items")
	kind := f["kind"].name()
	if kind == kindList && v.path == "" {
		for _, item := range f["items"].items() {
			r.object(item)
		}
		return
	}
	if kind != kindObjective && kind != kindRewrite {
		if kind != "" {
			f["kind"].problem("want %s or %s, got %q", kindObjective, kindRewrite, kind)
		}
		return
	}
	if f["items"].node != nil {
		f["items"].problem("only a %s has it", kindList)
	}
	if version := f["apiVersion"].name(); version != "" && !slices.Contains(versions, version) {
		f["apiVersion"].problem("want %s or %s, got %q", versions[0], versions[1], version)
	}
	name, created := r.metadata(f["metadata"], kind)
	if kind == kindObjective {
		r.objective(f["spec"], name)
	} else {
		r.rewrite(f["spec"], name, created)
	}
}

// metadata reads an object's name and age. It accepts all that Kubernetes adds.
func (r *reader) metadata(v value, kind string) (name string, created time.Time) {
	f := v.fields("name", "namespace", "labels", "annotations", "creationTimestamp", "uid", "resourceVersion", "generation",
		"generateName", "selfLink", "managedFields", "ownerReferences", "finalizers", "deletionTimestamp", "deletionGracePeriodSeconds")
	name = f["name"].name()
	if name == "" {
		return "", created
	}
	r.of = kind + " " + name
	if line, twice := r.lines[r.of]; twice {
		f["name"].problem("is the name of the one in line %d too", line)
	}
	r.lines[r.of] = f["name"].line
	if at := f["creationTimestamp"]; at.is(yaml.ScalarNode, "a time") {
		var err error
		if created, err = time.Parse(time.RFC3339, at.node.Value); err != nil {
			at.problem("want a time like 2026-01-31T12:00:00Z, got %q", at.node.Value)
		}
	}
	return name, created
}

func (r *reader) objective(spec value, name string) {
	f := spec.fields("poolRef", "priority")
	r.pool(f["poolRef"])
	r.objectives = append(r.objectives, epp.Objective{Name: name, Priority: f["priority"].number(math.MinInt32, math.MaxInt32, 0)})
}

func (r *reader) rewrite(spec value, name string, created time.Time) {
	f := spec.fields("poolRef", "rules")
	r.pool(f["poolRef"])
	rewrite := epp.Rewrite{Name: name, Created: created}
	f["rules"].needs()
	for _, rule := range f["rules"].items() {
		rewrite.Rules = append(rewrite.Rules, r.rule(rule))
	}
	r.rewrites = append(r.rewrites, rewrite)
}

// pool checks the reference to a pool.
func (r *reader) pool(v value) {
	f := v.fields("group", "kind", "name")
	f["group"].text()
	f["kind"].text()
	f["name"].name()
}

func (r *reader) rule(v value) (rule epp.RewriteRule) {
	f := v.fields("matches", "targets")
	for _, match := range f["matches"].items() {
		m := match.fields("model")["model"].fields("type", "value")
		if kind := m["type"].text(); kind != "" && kind != "Exact" {
			m["type"].problem("want Exact, got %q", kind)
		}
		rule.Models = append(rule.Models, m["value"].name())
	}
	targets := f["targets"]
	if targets.needs() && targets.node.Kind == yaml.SequenceNode && len(targets.node.Content) == 0 {
		targets.problem("want at least one model that answers")
	}
	for _, target := range targets.items() {
		t := target.fields("modelRewrite", "weight")
		rule.Targets = append(rule.Targets, epp.RewriteTarget{Model: t["modelRewrite"].name(), Weight: t["weight"].number(1, epp.MaxWeight, 1)})
	}
	return rule
}
