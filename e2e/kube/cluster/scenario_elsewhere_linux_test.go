package cluster

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// scenarioElsewhere runs scenarios as on a cluster that was there before: this one, known by its kubeconfig alone. They
// make their namespace, so that of the others must be gone.
var scenarioElsewhere = scenario{name: "elsewhere", local: "is that other cluster", run: func(t *testing.T, r *run) {
	r.mustKubectl(t, "delete", "namespace", namespace, "--ignore-not-found", "--timeout=60s")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(r.ctx, self, "-test.run=^TestScenarios$", "-test.v", "-cluster", "-cluster.real",
		"-cluster.only=^(install|threshold|uninstall)$")
	cmd.Env = append(os.Environ(), "KUBECONFIG="+r.kubeconfig)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	passed := 0
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "--- PASS: TestScenarios/") {
			passed++
		}
	}
	if passed != 3 {
		t.Errorf("%d scenarios passed, want 3:\n%s", passed, out)
	}
	r.saw("install, threshold and uninstall pass with nothing but KUBECONFIG")
}}
