package charts_test

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// podOf returns the pod that a Deployment makes.
func podOf(t *testing.T, all objects, suffix string) corev1.PodTemplateSpec {
	t.Helper()
	var d appsv1.Deployment
	convert(t, all.named(t, "Deployment", suffix), &d)
	return d.Spec.Template
}

func convert(t *testing.T, from *unstructured.Unstructured, to any) {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(from.Object, to); err != nil {
		t.Fatal(err)
	}
}

// timeOf finds a time in a command, "5s" or, as vLLM has it, "5".
func timeOf(t *testing.T, words []string, flag string) time.Duration {
	t.Helper()
	found := regexp.MustCompile(flag + `=(\d+)`).FindStringSubmatch(strings.Join(words, " "))
	if found == nil {
		t.Fatalf("no %s in %v", flag, words)
	}
	seconds, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(seconds) * time.Second
}

// Whatever drainSeconds is, what runs one after the other is over within it, and the kubelet kills later.
func TestDrainFits(t *testing.T) {
	for _, seconds := range []int{43, 60, 3600} {
		drain := time.Duration(seconds) * time.Second
		all := render(t, fmt.Sprintf("--set=drainSeconds=%d", seconds))
		for _, role := range []string{"prefill", "decode"} {
			t.Run(fmt.Sprintf("%s, %v", role, drain), func(t *testing.T) {
				pod := podOf(t, all, "-"+role).Spec
				engine := pod.Containers[0]
				hook := engine.Lifecycle.PreStop.Exec.Command
				wait, settle := timeOf(t, hook, "--timeout"), timeOf(t, hook, "--settle")
				if wait <= settle {
					t.Errorf("the hook ends after %v, but looks after %v only", wait, settle)
				}
				whole := wait + timeOf(t, engine.Args, "--shutdown-timeout")
				if role == "decode" {
					whole += timeOf(t, pod.InitContainers[1].Args, "--drain-timeout")
				}
				if whole > drain {
					t.Errorf("hook, engine and sidecar take %v, which is more than drainSeconds", whole)
				}
				if grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second; grace <= drain {
					t.Errorf("the kubelet kills after %v, within drainSeconds", grace)
				}
			})
		}
	}
}

// Streams that have left an engine are passed on for drainSeconds after the hook began, which the kubelet outwaits, and their legs are
// let through to the sidecars that go on with them.
func TestStreamsLeave(t *testing.T) {
	all := render(t, "--set=sidecar.continuation.times=2", "--set=decode.parallelism.data=2", "--set=drainSeconds=300")
	pod := podOf(t, all, "-decode").Spec
	hook := strings.Join(pod.Containers[0].Lifecycle.PreStop.Exec.Command, " ")
	for rank, admin := range []string{"127.0.0.1:9096", "127.0.0.1:9098"} {
		sidecar := pod.InitContainers[1+rank].Args
		if !slices.Contains(sidecar, "--admin-address="+admin) || !strings.Contains(hook, "--evacuate="+admin) {
			t.Errorf("the hook does not ask rank %d at %s: %s", rank, admin, hook)
		}
		moved := timeOf(t, sidecar, "--evacuate-timeout")
		if least, grace := timeOf(t, []string{hook}, "--timeout"), time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second; moved < least || moved >= grace {
			t.Errorf("streams go on for %v after the hook began, which takes %v at most; the kubelet kills after %v", moved, least, grace)
		}
		for _, want := range []string{"--continue-times=2", "10.0.0.0/8:8001", "--continue-discovery=dns://" + all.named(t, "Service", "-decode").GetName() + ":8000"} {
			if !strings.Contains(strings.Join(sidecar, " "), want) {
				t.Errorf("rank %d has no %s: %v", rank, want, sidecar)
			}
		}
	}
	enginesAreClosed(t, " with streams that go on", all, map[string][]string{"-prefill": {"decode", "epp", "test"}, "-decode": {"decode", "epp", "prefill", "proxy", "test"}})
	if args := podOf(t, render(t), "-decode").Spec.InitContainers[1].Args; strings.Contains(strings.Join(args, " "), "continue") {
		t.Errorf("streams go on without being told: %v", args)
	}
}

// Addresses go to clients, and slow requests to the log, only if the values say so; the sidecar accepts what the chart writes.
func TestSidecarTells(t *testing.T) {
	for _, c := range []struct {
		name, set string
		want      []string
	}{
		{"nothing", "", nil},
		{"nothing said twice", "sidecar.slowRequestSeconds=0,sidecar.tellPods=false", nil},
		{"slow requests", "sidecar.slowRequestSeconds=1", []string{"--slow-request=1s"}},
		{"very slow requests", "sidecar.slowRequestSeconds=3600", []string{"--slow-request=3600s"}},
		{"pods", "sidecar.tellPods=true", []string{"--tell-pods"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := podOf(t, render(t, "--set="+c.set), "-decode").Spec.InitContainers[1].Args
			var got []string
			for _, arg := range args {
				if strings.HasPrefix(arg, "--slow-request") || strings.HasPrefix(arg, "--tell-pods") {
					got = append(got, arg)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("the sidecar gets %q, want %q", got, c.want)
			}
			if out, err := exec.CommandContext(t.Context(), program(t, "sidecar"), append(got, "--check")...).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// Only decode pods of the release reach the side channel of each rank and the ports that UCX takes (and helm test, which looks
// whether it is there), and only what is in the list an engine's own port. A keeper opens them no further.
func TestEnginesAreClosed(t *testing.T) {
	may := map[string][]string{"-prefill": {"decode", "epp", "test"}, "-decode": {"epp", "prefill", "proxy", "test"}}
	for name, all := range map[string]objects{"": render(t), " with a keeper": render(t, cases(t)["keeper"]...)} {
		enginesAreClosed(t, name, all, may)
	}
}

func enginesAreClosed(t *testing.T, name string, all objects, may map[string][]string) {
	onSideChannel := map[string][]string{"-prefill": {"decode", "test"}, "-decode": {"prefill", "test"}}
	for suffix := range may {
		t.Run(suffix+name, func(t *testing.T) {
			var policy networkingv1.NetworkPolicy
			convert(t, all.named(t, "NetworkPolicy", suffix), &policy)
			pod := podOf(t, all, suffix)
			for key, value := range policy.Spec.PodSelector.MatchLabels {
				if pod.Labels[key] != value {
					t.Errorf("the policy is for pods with %s=%s, but this one has %q", key, value, pod.Labels[key])
				}
			}
			ports := map[int32][]string{8000: may[suffix], 5600: onSideChannel[suffix], 5607: onSideChannel[suffix], 5701: onSideChannel[suffix],
				40000: onSideChannel[suffix]}
			for port, want := range ports {
				if got := admitted(t, policy, port); !slices.Equal(got, want) {
					t.Errorf("%v reach port %d, want %v", got, port, want)
				}
			}
		})
	}
}

// admitted names the components of the release that a policy admits to a port; any other peer fails the test.
func admitted(t *testing.T, policy networkingv1.NetworkPolicy, port int32) (components []string) {
	t.Helper()
	for _, rule := range policy.Spec.Ingress {
		covers := len(rule.Ports) == 0 || slices.ContainsFunc(rule.Ports, func(p networkingv1.NetworkPolicyPort) bool {
			last := p.Port.IntVal
			if p.EndPort != nil {
				last = *p.EndPort
			}
			return p.Port.IntVal <= port && port <= last
		})
		if !covers {
			continue
		}
		for _, peer := range rule.From {
			if peer.PodSelector == nil || peer.PodSelector.MatchLabels["app.kubernetes.io/instance"] != release {
				t.Errorf("port %d is open to others than this release: %v", port, peer)
				continue
			}
			components = append(components, peer.PodSelector.MatchLabels["app.kubernetes.io/component"])
		}
		if len(rule.From) == 0 {
			t.Errorf("port %d is open to all clients", port)
		}
	}
	slices.Sort(components)
	return components
}

// Each rank has a sidecar and ports of its own, and the role with fewer ranks says which ports it has.
func TestRanks(t *testing.T) {
	all := render(t, "--set=decode.parallelism.data=2", "--set=decode.parallelism.tensor=2")
	decode, prefill := podOf(t, all, "-decode"), podOf(t, all, "-prefill")
	taken := map[int32]string{}
	sidecars := 0
	for _, c := range slices.Concat(decode.Spec.InitContainers, decode.Spec.Containers) {
		if c.RestartPolicy != nil {
			sidecars++
		}
		for _, port := range c.Ports {
			if other, ok := taken[port.ContainerPort]; ok {
				t.Errorf("%s and %s both have port %d", other, c.Name, port.ContainerPort)
			}
			taken[port.ContainerPort] = c.Name
		}
	}
	if sidecars != 2 || taken[8000] != "sidecar" || taken[8001] != "sidecar-1" || taken[8201] != "engine" {
		t.Errorf("%d sidecars, ports %v", sidecars, taken)
	}
	if gpus := decode.Spec.Containers[0].Resources.Limits["nvidia.com/gpu"]; gpus.Value() != 4 {
		t.Errorf("2 ranks of 2 GPUs get %v", gpus.String())
	}
	if got := prefill.Annotations["llm-d.ai/active-ports"]; got != "8000" {
		t.Errorf("prefill pods with one rank say that their ports are %q", got)
	}
	if got, ok := decode.Annotations["llm-d.ai/active-ports"]; ok {
		t.Errorf("decode pods have all ranks, and still say %q", got)
	}
	if hook := strings.Join(decode.Spec.Containers[0].Lifecycle.PreStop.Exec.Command, " "); !strings.Contains(hook, ":8200") ||
		!strings.Contains(hook, ":8201") || !strings.Contains(hook, ":9097") {
		t.Errorf("the hook does not wait for all ranks: %s", hook)
	}
}

// A capability that is added takes effect for root alone.
func TestLockedMemory(t *testing.T) {
	engine := podOf(t, render(t, "--set=decode.rdma.ipcLock=true"), "-decode").Spec.Containers[0].SecurityContext
	if !slices.Equal(engine.Capabilities.Add, []corev1.Capability{"IPC_LOCK"}) || engine.RunAsUser == nil || *engine.RunAsUser != 0 ||
		engine.RunAsNonRoot == nil || *engine.RunAsNonRoot {
		t.Errorf("the engine may lock no memory: %+v", engine)
	}
	if engine := podOf(t, render(t), "-decode").Spec.Containers[0].SecurityContext; engine.Capabilities.Add != nil || engine.RunAsUser != nil {
		t.Errorf("no value requests it: %+v", engine)
	}
}
