package charts_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
)

// group is what this test reads of a LeaderWorkerSet.
type group struct {
	Metadata struct {
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		Replicas *int `json:"replicas"`
		Rollout  struct {
			Type          string         `json:"type"`
			Configuration map[string]any `json:"rollingUpdateConfiguration"`
		} `json:"rolloutStrategy"`
		StartupPolicy string `json:"startupPolicy"`
		Template      struct {
			Size    int                    `json:"size"`
			Restart string                 `json:"restartPolicy"`
			Leader  corev1.PodTemplateSpec `json:"leaderTemplate"`
			Worker  corev1.PodTemplateSpec `json:"workerTemplate"`
		} `json:"leaderWorkerTemplate"`
	} `json:"spec"`
}

func groupOf(t *testing.T, all objects, suffix string) (g group) {
	t.Helper()
	convert(t, all.named(t, "LeaderWorkerSet", suffix), &g)
	return g
}

// groupOfTwo makes both roles groups of two pods that share a rank.
const groupOfTwo = "prefill.group.size=2,prefill.parallelism.tensor=2,decode.group.size=2,decode.parallelism.tensor=2"

// TestLeaderIsTheSamePod holds that the leader of a group is the pod that an engine in one pod has, but for its place in the group and its half of the
// accelerators.
func TestLeaderIsTheSamePod(t *testing.T) {
	for name, more := range map[string]string{
		"vLLM":          "",
		"with a keeper": "sidecar.keeper.enabled=true,sidecar.continuation.times=1,epp.authSecret=picker",
		"with TLS":      "tls.sidecarSecret=sidecar,tls.prefill.secret=prefill",
		"SGLang":        "engine.type=sglang,engine.image.repository=lmsysorg/sglang,engine.image.tag=v0.5.23",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			grouped := render(t, "--set="+groupOfTwo+","+more)
			single := render(t, "--set=prefill.parallelism.tensor=2,decode.parallelism.tensor=2,"+more)
			for _, role := range []string{"-prefill", "-decode"} {
				got, want := groupOf(t, grouped, role).Spec.Template.Leader, podOf(t, single, role)
				alone(&got)
				alone(&want)
				a, b := canonical(t, got), canonical(t, want)
				if a != b {
					t.Errorf("%s: the leader differs: %s", role, firstDifference(a, b))
				}
			}
		})
	}
}

// alone takes out of a pod what says that it is one of several, and what has the name of the workload in it.
func alone(pod *corev1.PodTemplateSpec) {
	engine := &pod.Spec.Containers[0]
	delete(engine.Resources.Limits, "nvidia.com/gpu")
	engine.Args = slices.DeleteFunc(engine.Args, func(arg string) bool {
		return has([]string{arg}, "--nnodes=") || has([]string{arg}, "--node-rank=") || has([]string{arg}, "--master-addr=") || has([]string{arg}, "--dist-init-addr=")
	})
	engine.Env = slices.DeleteFunc(engine.Env, func(e corev1.EnvVar) bool { return e.Name == "VLLM_HOST_IP" })
	for i := range pod.Spec.TopologySpreadConstraints {
		pod.Spec.TopologySpreadConstraints[i].MatchLabelKeys = nil
	}
	for i := range pod.Spec.InitContainers {
		for k, arg := range pod.Spec.InitContainers[i].Args {
			pod.Spec.InitContainers[i].Args[k] = strings.Replace(arg, "-leaders:8000", ":8000", 1)
		}
	}
}

// TestWorkers holds that a worker has its engine's arguments, its place in the group, and nothing that serves.
func TestWorkers(t *testing.T) {
	for name, test := range map[string]struct {
		more         string
		flags, hooks []string // of the worker alone; the hooks of prefill and decode
	}{
		"vLLM": {"", []string{"--headless"},
			[]string{"--engine=$LWS_LEADER_ADDRESS:8000 --handoffs", "--sidecar=$LWS_LEADER_ADDRESS:9095"}},
		"vLLM with TLS": {"tls.sidecarSecret=sidecar,tls.prefill.secret=prefill", []string{"--headless"},
			[]string{"--engine=https://$LWS_LEADER_ADDRESS:8000 --handoffs", "--sidecar=$LWS_LEADER_ADDRESS:9095"}},
		"SGLang": {"engine.type=sglang,engine.image.repository=lmsysorg/sglang,engine.image.tag=v0.5.23", nil,
			[]string{"--engine=$LWS_LEADER_ADDRESS:8000 --handoffs", "--sidecar=$LWS_LEADER_ADDRESS:9095"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := render(t, "--set="+groupOfTwo+","+test.more)
			for i, role := range []string{"-prefill", "-decode"} {
				template := groupOf(t, all, role).Spec.Template
				leader, worker := template.Leader.Spec.Containers[0], template.Worker.Spec.Containers[0]
				more := slices.DeleteFunc(slices.Clone(worker.Args), func(arg string) bool { return slices.Contains(leader.Args, arg) })
				if !slices.Equal(more, test.flags) || len(worker.Args) != len(leader.Args)+len(more) {
					t.Errorf("%s: the worker has %q, the leader %q", role, worker.Args, leader.Args)
				}
				if !slices.Contains(worker.Args, "--nnodes=2") || !slices.Contains(worker.Args, "--node-rank=$(LWS_WORKER_INDEX)") {
					t.Errorf("%s: the worker does not know its place: %q", role, worker.Args)
				}
				if worker.Ports != nil || worker.ReadinessProbe != nil || worker.LivenessProbe != nil || len(template.Worker.Spec.InitContainers) != 1 {
					t.Errorf("%s: a worker that serves nothing has ports, probes or sidecars: %+v", role, worker)
				}
				if hook := strings.Join(worker.Lifecycle.PreStop.Exec.Command, " "); !strings.Contains(hook, test.hooks[i]) {
					t.Errorf("%s: the worker does not wait for its leader: %s", role, hook)
				}
				if wait, grace := timeOf(t, worker.Lifecycle.PreStop.Exec.Command, "--timeout").Seconds(), *template.Worker.Spec.TerminationGracePeriodSeconds; int64(wait) >= grace {
					t.Errorf("%s: the worker waits for %v s, and the kubelet kills after %d", role, wait, grace)
				}
				if canonical(t, worker.Resources) != canonical(t, leader.Resources) || canonical(t, worker.Env) != canonical(t, leader.Env) {
					t.Errorf("%s: leader and worker are not alike", role)
				}
			}
		})
	}
}

// TestShares: how many accelerators each pod of a group has, and what vLLM is told of ranks.
func TestShares(t *testing.T) {
	for _, c := range []struct {
		size, tensor, data int
		want               int64
		ranks              []string
	}{
		{2, 16, 1, 8, nil},
		{2, 1, 16, 8, []string{"--data-parallel-size=16"}},
		{4, 16, 2, 8, []string{"--data-parallel-size=2"}},
		{2, 2, 8, 8, []string{"--data-parallel-size=8"}},
		{3, 3, 1, 1, nil},
	} {
		t.Run(fmt.Sprintf("%d pods, %d by %d", c.size, c.tensor, c.data), func(t *testing.T) {
			t.Parallel()
			all := render(t, fmt.Sprintf("--set=decode.group.size=%d,decode.parallelism.tensor=%d,decode.parallelism.data=%d", c.size, c.tensor, c.data))
			for _, pod := range []corev1.PodTemplateSpec{groupOf(t, all, "-decode").Spec.Template.Leader, groupOf(t, all, "-decode").Spec.Template.Worker} {
				engine := pod.Spec.Containers[0]
				if gpus := engine.Resources.Limits["nvidia.com/gpu"]; gpus.Value() != c.want {
					t.Errorf("a pod has %v accelerators, want %d", gpus.Value(), c.want)
				}
				ranks := slices.DeleteFunc(slices.Clone(engine.Args), func(arg string) bool { return !strings.HasPrefix(arg, "--data-parallel") })
				if !slices.Equal(ranks, c.ranks) {
					t.Errorf("vLLM is told %q, want %q", ranks, c.ranks)
				}
			}
		})
	}
}

// TestLeadersServe: which selectors find the workers of a group. They get no requests, and no sidecar looks for them; a budget that left them out would let
// a group end with one, and a policy that did would leave them open.
func TestLeadersServe(t *testing.T) {
	all := render(t, append(monitors, "--set=mode=gateway,gateway.name=front,sidecar.keeper.enabled=true,sidecar.continuation.times=1,"+groupOfTwo)...)
	for _, role := range []string{"-prefill", "-decode"} {
		template := groupOf(t, all, role).Spec.Template
		for kind, want := range map[string]bool{"InferencePool": false, "Service": false, "PodDisruptionBudget": true, "NetworkPolicy": true} {
			suffix := map[string]string{"InferencePool": "-tandem", "Service": role + "-leaders"}[kind]
			if suffix == "" {
				suffix = role
			}
			selector := labels.SelectorFromSet(selectorOf(t, all.named(t, kind, suffix)))
			if !selector.Matches(labels.Set(template.Leader.Labels)) {
				t.Errorf("%s: the %s does not find leaders", role, kind)
			}
			if got := selector.Matches(labels.Set(template.Worker.Labels)); got != want {
				t.Errorf("%s: the %s finds workers: %t, want %t", role, kind, got, want)
			}
		}
		if service := release + "-tandem" + role; slices.Contains(all.names(), "Service/"+service) {
			t.Errorf("the Service %s is there, which the controller of LeaderWorkerSets makes for the group", service)
		}
	}
	sidecar := groupOf(t, all, "-decode").Spec.Template.Leader.Spec.InitContainers[1].Args
	for _, flag := range []string{"--prefill-discovery=dns://demo-tandem-prefill-leaders:8000", "--continue-discovery=dns://demo-tandem-decode-leaders:8000"} {
		if !slices.Contains(sidecar, flag) {
			t.Errorf("the sidecar has no %s: %q", flag, sidecar)
		}
	}
}

// selectorOf returns the labels that an object selects pods by.
func selectorOf(t *testing.T, o *unstructured.Unstructured) map[string]string {
	t.Helper()
	for _, path := range [][]string{{"spec", "selector", "matchLabels"}, {"spec", "podSelector", "matchLabels"}, {"spec", "selector"}} {
		if found, ok, err := unstructured.NestedStringMap(o.Object, path...); err == nil && ok {
			return found
		}
	}
	t.Fatalf("%s/%s selects nothing", o.GetKind(), o.GetName())
	return nil
}

// TestGroupsTalk holds that the parts of an engine reach each other at whatever ports they take, and that the other pods reach no more than
// without groups.
func TestGroupsTalk(t *testing.T) {
	all := render(t, "--set="+groupOfTwo)
	for suffix, want := range map[string][]string{"-prefill": {"decode", "prefill", "test"}, "-decode": {"decode", "prefill", "test"}} {
		var policy networkingv1.NetworkPolicy
		convert(t, all.named(t, "NetworkPolicy", suffix), &policy)
		for _, port := range []int32{29501, 20000, 5600, 40000} {
			if got := admitted(t, policy, port); !slices.Equal(got, want) {
				t.Errorf("%s: %v reach port %d, want %v", suffix, got, port, want)
			}
		}
	}
}

// TestGroupsAreScaled holds that autoscalers, rollouts and placement are about groups.
func TestGroupsAreScaled(t *testing.T) {
	const on = "prefill.autoscaling.enabled=true,prefill.autoscaling.scaler=keda,prefill.autoscaling.metric=tandem_desired_replicas,prefill.autoscaling.target=1," +
		"decode.autoscaling.enabled=true,prefill.group.topology=rack,decode.rollout.maxSurge=50%,decode.rollout.maxUnavailable=25%"
	scaled, fixed := render(t, "--set="+groupOfTwo+","+on), render(t, "--set=decode.replicas=3,"+groupOfTwo)
	for kind, role := range map[string]string{"ScaledObject": "-prefill", "HorizontalPodAutoscaler": "-decode"} {
		target, _, err := unstructured.NestedStringMap(scaled.named(t, kind, role).Object, "spec", "scaleTargetRef")
		if err != nil || target["apiVersion"] != "leaderworkerset.x-k8s.io/v1" || target["kind"] != "LeaderWorkerSet" ||
			target["name"] != scaled.named(t, "LeaderWorkerSet", role).GetName() {
			t.Errorf("the %s scales %v, %v", kind, target, err)
		}
		if replicas := groupOf(t, scaled, role).Spec.Replicas; replicas != nil {
			t.Errorf("the LeaderWorkerSet has %d replicas, which an upgrade would reset it to", *replicas)
		}
	}
	prefill, decode := groupOf(t, scaled, "-prefill"), groupOf(t, scaled, "-decode")
	const topology = "leaderworkerset.sigs.k8s.io/exclusive-topology"
	if prefill.Metadata.Annotations[topology] != "rack" || decode.Metadata.Annotations[topology] != "" {
		t.Errorf("annotations %v and %v", prefill.Metadata.Annotations, decode.Metadata.Annotations)
	}
	if r := decode.Spec.Rollout; r.Type != "RollingUpdate" || fmt.Sprintf("%v %v", r.Configuration["maxSurge"], r.Configuration["maxUnavailable"]) != "50% 25%" {
		t.Errorf("rollout %+v", r)
	}
	if s := decode.Spec; s.Template.Size != 2 || s.Template.Restart != "RecreateGroupOnPodRestart" || s.StartupPolicy != "LeaderCreated" {
		t.Errorf("a group is %d pods, %s, %s", s.Template.Size, s.Template.Restart, s.StartupPolicy)
	}
	if replicas := groupOf(t, fixed, "-decode").Spec.Replicas; replicas == nil || *replicas != 3 {
		t.Errorf("decode has %v groups, want 3", replicas)
	}
	for _, pod := range []corev1.PodTemplateSpec{decode.Spec.Template.Leader, decode.Spec.Template.Worker} {
		if c := pod.Spec.TopologySpreadConstraints; len(c) != 1 || !slices.Equal(c[0].MatchLabelKeys, []string{"leaderworkerset.sigs.k8s.io/template-revision-hash"}) {
			t.Errorf("pods are spread by %+v", c)
		}
	}
}
