package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/epp"
)

// rewriteTo returns a policy file that rewrites every model to one.
func rewriteTo(model string) string {
	return `apiVersion: llm-d.ai/v1alpha2
kind: InferenceModelRewrite
metadata: {name: canary}
spec:
  poolRef: {name: any}
  rules: [{targets: [{modelRewrite: ` + model + `}]}]
`
}

// TestPolicyFile: the policy applies from the start, a changed file replaces it, and an invalid file changes nothing and is reported.
func TestPolicyFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, file, rewriteTo("first"))
	s := serve(t, "--policy-file="+file, "--secure-serving=false")
	answers := func() string {
		_, text := s.ask(t, "POST", "admin", "/explain/v1/completions", strings.NewReader(`{"model":"m","prompt":"hello"}`))
		var x epp.Explanation
		must(t, json.Unmarshal([]byte(text), &x))
		return x.Request.Model
	}
	if got := answers(); got != "first" {
		t.Errorf("explained for model %q", got)
	}
	if head := s.pickHead(t, true); head.Get("x-tandem-model") != "m;answers=first" {
		t.Errorf("the sidecar is told %v", head)
	}
	write(t, file, rewriteTo("second"))
	eventually(t, func() bool { return answers() == "second" })
	write(t, file, "kind: Pod")
	s.tells(t, "the policy file "+file+" cannot be used")
	if got := answers(); got != "second" {
		t.Errorf("with a broken file, explained for model %q", got)
	}
}
