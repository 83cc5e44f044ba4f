package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// misspelt is a plugin that there is not. The chart cannot know, so it renders.
const misspelt = "queue-scorrer"

// metricsPort is the pickers' own: /metrics and /readyz.
const metricsPort = 9090

// scenarioBadConfig: a user rolls a picker's configuration out that is broken. Those that run keep the last good one, the
// new pod says in its log what is wrong, where, and stops the rollout; taking the upgrade back is all that is to be done.
var scenarioBadConfig = scenario{name: "bad config", release: true, run: func(t *testing.T, r *run) {
	before := r.llm.readyPods(r.ctx, t, "epp")
	l := r.press(t, r.llm, 0)
	l.await(t, 10)

	args := append([]string{"upgrade", "llm", chart, "-n", namespace, "--wait", "--timeout", "25s"}, r.llm.values(nil)...)
	out, err := r.helm(r.ctx, t, append(args, "-f", r.brokenValues(t))...)
	if err == nil {
		t.Errorf("helm upgrade --wait says that the rollout is done:\n%s", out)
	}
	r.rolloutStops(t, before)
	r.lastGoodServes(t, before)
	l.await(t, 20)

	if _, err := r.helm(r.ctx, t, "rollback", "llm", "-n", namespace, "--wait", "--timeout", helmTimeout); err != nil {
		t.Fatalf("%v\n%s", err, r.llm.state(r.ctx))
	}
	r.llm.awaitSettled(t, "epp", time.Minute)
	r.configIs(t, before, 1)
	if after := r.llm.readyPods(r.ctx, t, "epp"); !slices.Equal(identities(after), identities(before)) {
		t.Errorf("the pickers are %v now, and were %v", identities(after), identities(before))
	}
	l.await(t, 20)
	l.end(t)
	r.saw("after helm rollback the same two pickers serve, none was started again, and tell of no trouble")
}}

// brokenValues returns a values file with the configuration that the release has, and a misspelt plugin in it.
func (r *run) brokenValues(t *testing.T) string {
	t.Helper()
	maps, err := r.admin.CoreV1().ConfigMaps(namespace).Get(r.ctx, r.llm.object("epp"), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var config map[string]any
	if err := yaml.Unmarshal([]byte(maps.Data["config.yaml"]), &config); err != nil {
		t.Fatal(err)
	}
	plugins, _ := config["plugins"].([]any)
	if len(plugins) == 0 {
		t.Fatalf("the release's configuration has no plugins:\n%s", maps.Data["config.yaml"])
	}
	config["plugins"] = append(plugins, map[string]any{"type": misspelt})
	values, err := yaml.Marshal(map[string]any{"epp": map[string]any{"config": config}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "broken.yaml")
	if err := os.WriteFile(path, values, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// complaint is what pickers say of the configuration, wherever they say it.
const complaint = `there is no plugin type "` + misspelt + `"; did you mean "queue-scorer"?`

// rolloutStops: the new pod is not ready and says why, the old ones are all that serves, and none was taken away for it.
func (r *run) rolloutStops(t *testing.T, before []corev1.Pod) {
	t.Helper()
	known := identities(before)
	var broken corev1.Pod
	r.await(t, "the new picker is started again and again", time.Minute, func(ctx context.Context) (string, bool) {
		pods := r.llm.pods(ctx, t, "epp")
		at := slices.IndexFunc(pods, func(p corev1.Pod) bool { return !slices.Contains(known, identity(p)) })
		if at < 0 {
			return podNames(pods), false
		}
		broken = pods[at]
		return fmt.Sprintf("%+v", broken.Status.ContainerStatuses), waitsBecause(broken, "CrashLoopBackOff")
	})
	if code := lastExit(broken); code != 3 {
		t.Errorf("the new picker ended with exit code %d, want 3: the configuration is invalid", code)
	}
	log := r.mustKubectl(t, "logs", broken.Name, "-n", namespace)
	if !strings.Contains(log, complaint) || !strings.Contains(log, "plugins[") {
		t.Errorf("the log of %s does not say which field is wrong and how:\n%s", broken.Name, log)
	}
	if shown := r.mustKubectl(t, "get", "pods", "-n", namespace); !strings.Contains(lineOf(shown, broken.Name), "0/1") {
		t.Errorf("kubectl get pods does not show that %s is not ready:\n%s", broken.Name, shown)
	}
	r.llm.mustHaveEvents(t, broken.Name, "Scheduled", "Started", "BackOff")
	d, err := r.admin.AppsV1().Deployments(namespace).Get(r.ctx, r.llm.object("epp"), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if s := d.Status; s.UpdatedReplicas != 1 || s.AvailableReplicas != 2 || s.Replicas != 3 {
		t.Errorf("the Deployment has %d pods, %d updated, %d available; want 3, 1, 2", s.Replicas, s.UpdatedReplicas,
			s.AvailableReplicas)
	}
	if ready, _ := r.llm.endpoints(r.ctx, t,
		r.llm.object("epp-replicas")); !slices.Equal(slices.Sorted(slices.Values(ready)), addresses(before)) {
		t.Errorf("the proxies are told of the pickers %v, want the old ones, %v", ready, addresses(before))
	}
	r.saw("the new picker: CrashLoopBackOff, exit code 3, its log: …%s", complaint)
}

// lastGoodServes: those that run have read the broken one too, say so, and go on with what they had.
func (r *run) lastGoodServes(t *testing.T, pods []corev1.Pod) {
	t.Helper()
	r.configIs(t, pods, 0)
	for _, pod := range pods {
		text, err := r.page(r.ctx, namespace, pod.Name, metricsPort, "readyz")
		if err != nil || !strings.Contains(text, complaint) {
			t.Errorf("/readyz of %s, which is to be ready and to say what is wrong, says %v %s", pod.Name, err, text)
		}
	}
	r.saw("both old pickers are ready, say the same in /readyz, and serve by the last good configuration")
}

// configIs waits until the metric by which pickers tell whether they have taken the last configuration is 1 or 0.
func (r *run) configIs(t *testing.T, pods []corev1.Pod, want float64) {
	t.Helper()
	const metric = "tandem_config_last_reload_successful"
	for _, pod := range pods {
		r.await(t, fmt.Sprintf("%s of %s is %v", metric, pod.Name, want), 30*time.Second, func(ctx context.Context) (string,
			bool) {
			page, err := r.page(ctx, namespace, pod.Name, metricsPort, "metrics")
			if err != nil || !strings.Contains(page, metric) {
				return fmt.Sprint("it is not on the page: ", err), false
			}
			now := sum(page, metric)
			return fmt.Sprint(now), now == want
		})
	}
}

// identity tells a pod from one that takes its place, and a container from one that was started again.
func identity(p corev1.Pod) string {
	restarts := 0
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		restarts += int(s.RestartCount)
	}
	return fmt.Sprintf("%s/%s/%d", p.Name, p.UID, restarts)
}

func identities(pods []corev1.Pod) (all []string) {
	for _, p := range pods {
		all = append(all, identity(p))
	}
	slices.Sort(all)
	return all
}

func addresses(pods []corev1.Pod) (all []string) {
	for _, p := range pods {
		all = append(all, p.Status.PodIP)
	}
	slices.Sort(all)
	return all
}

// waitsBecause reports whether a container of the pod waits for a reason.
func waitsBecause(p corev1.Pod, reason string) bool {
	return slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Waiting != nil && s.State.Waiting.Reason == reason
	})
}

// lastExit returns the code that the pod's container last ended with, -1 if it has not.
func lastExit(p corev1.Pod) int {
	for _, s := range p.Status.ContainerStatuses {
		if end := s.LastTerminationState.Terminated; end != nil {
			return int(end.ExitCode)
		}
	}
	return -1
}

// lineOf returns the line of a table that begins with a name.
func lineOf(table, name string) string {
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, name) {
			return line
		}
	}
	return ""
}
