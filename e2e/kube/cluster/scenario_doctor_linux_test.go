package cluster

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// scenarioDoctor: a user asks tandem doctor what is wrong, from his own machine by the kubeconfig, and from a pod inside by
// helm test. Nothing is; then one thing after the other is, and it is named; then nothing is again.
var scenarioDoctor = scenario{name: "doctor", release: true, run: func(t *testing.T, r *run) {
	d := &doctor{r: r, release: r.llm.name, path: buildTandem(t)}
	d.mustBeWell(t)
	if out, err := d.helmTest(t); err != nil {
		t.Errorf("helm test of a release that is well: %v\n%s", err, out)
	}
	for _, f := range faults {
		if f.local && r.local == nil {
			r.saw("%s: not looked at, since it needs the cluster that this test makes itself", f.name)
			continue
		}
		heal := f.make(t, r)
		d.mustFind(t, f)
		heal()
		r.llm.awaitSettled(t, f.component, time.Minute)
	}
	d.mustBeWell(t)
	if out, err := d.helmTest(t); err != nil {
		t.Errorf("helm test of a release that is well again: %v\n%s", err, out)
	}
	r.row.add(tally{right: 1}) // the doctor's own are not counted
	r.saw("%d faults named, exit code 1; healthy before and after, by kubeconfig and by helm test", len(faults))
}}

// fault is something that is broken, and how the doctor has to name it.
type fault struct {
	name, component string
	local           bool // only the local cluster can make it
	inside          bool // only the doctor inside, which goes by the Services' names, can see it
	finding         string
	make            func(t *testing.T, r *run) (heal func())
}

var faults = []fault{
	{
		name: "a prefill engine hangs", component: "prefill", local: true,
		finding: `FAIL +endpoints +llm-tandem-prefill-\S+: `,
		make: func(t *testing.T, r *run) func() {
			engine := r.container(t, r.llm.readyPods(r.ctx, t, "prefill")[0], "engine")
			send := func(s syscall.Signal) {
				if err := engine.Signal(s); err != nil {
					t.Error(err)
				}
			}
			send(syscall.SIGSTOP)
			return func() { send(syscall.SIGCONT) }
		},
	},
	{
		name: "a decode pod's role is misspelt", component: "decode",
		finding: `FAIL +roles +llm-tandem-decode-\S+: "decoder" is no role → set the label llm-d.ai/role to one of `,
		make: func(t *testing.T, r *run) func() {
			pod := r.llm.readyPods(r.ctx, t, "decode")[0].Name
			label := func(role string) {
				r.mustKubectl(t, "label", "pod", pod, "-n", namespace, "--overwrite", "llm-d.ai/role="+role)
			}
			label("decoder")
			return func() { label("decode") }
		},
	},
	{
		name: "the picker's Service has no endpoints", component: "epp", inside: true,
		finding: `FAIL +picker +the picker: its metrics port: `,
		make: func(t *testing.T, r *run) func() {
			service := r.llm.object("epp")
			choose := func(component string, endpoints int) {
				r.mustKubectl(t, "patch", "service", service, "-n", namespace, "--type=merge", "-p",
					`{"spec":{"selector":{"app.kubernetes.io/component":"`+component+`"}}}`)
				r.await(t, fmt.Sprintf("%d endpoints of %s", endpoints, service), 20*time.Second, func(ctx context.Context) (string,
					bool) {
					ready, _ := r.llm.endpoints(ctx, t, service)
					return fmt.Sprint(ready), len(ready) == endpoints
				})
			}
			choose("picker", 0)
			return func() { choose("epp", 2) }
		},
	},
}

// doctor is the user's tool.
type doctor struct {
	r       *run
	release string
	path    string
}

// buildTandem builds it as a user has it.
func buildTandem(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tandem")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path,
		"../../../cmd/tandem").CombinedOutput(); err != nil {
		t.Fatalf("building tandem: %v\n%s", err, out)
	}
	return path
}

// look runs it from here. It gives what it printed and its exit code.
func (d *doctor) look(ctx context.Context, t *testing.T, flags ...string) (string, int) {
	t.Helper()
	args := append([]string{"doctor", "--namespace=" + namespace, "--release=" + d.release,
		"--kubeconfig=" + d.r.kubeconfig}, flags...)
	out, err := d.r.command(ctx, "", d.path, args...)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return out, 0
	case errors.As(err, &exit):
		return out + err.Error(), exit.ExitCode()
	case ctx.Err() != nil:
		return err.Error(), -1
	}
	t.Fatal(err)
	return "", 0
}

// helmTest has it run in a pod. The pod's log is among what it gives.
func (d *doctor) helmTest(t *testing.T) (string, error) {
	t.Helper()
	return d.r.helm(d.r.ctx, t, "test", d.release, "-n", namespace, "--logs", "--timeout", "90s")
}

// mustBeWell waits until it finds nothing wrong: what was healed is seen a little later.
func (d *doctor) mustBeWell(t *testing.T) {
	t.Helper()
	d.r.await(t, "the doctor finds nothing wrong", time.Minute, func(ctx context.Context) (string, bool) {
		out, code := d.look(ctx, t, "--probe")
		return out, code == 0 && strings.Contains(out, " 0 FAIL")
	})
}

// mustFind waits until it names a fault.
func (d *doctor) mustFind(t *testing.T, f fault) {
	t.Helper()
	finding := regexp.MustCompile(f.finding + ".*")
	var named string
	if f.inside {
		out, err := d.helmTest(t)
		if named = finding.FindString(out); err == nil || named == "" {
			t.Errorf("%s: helm test, which is to fail and to say %s, says %v\n%s", f.name, f.finding, err, out)
		}
	} else {
		d.r.await(t, "the doctor sees that "+f.name, time.Minute, func(ctx context.Context) (string, bool) {
			out, code := d.look(ctx, t, "--idle-wait=0")
			named = finding.FindString(out)
			return fmt.Sprintf("exit code %d\n%s", code, out), code == 1 && named != ""
		})
	}
	d.r.saw("%s: %s", f.name, named)
}
