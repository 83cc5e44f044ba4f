package kube

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-serving/tandem/epp"
)

func TestEndpointsOfAPod(t *testing.T) {
	unready := func(p *corev1.Pod) { p.Status.Conditions[1].Status = corev1.ConditionFalse }
	ending := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }
	cases := []struct {
		name    string
		pod     *corev1.Pod
		ports   []uint16
		want    []string
		problem string
	}{
		{name: "one port", pod: podOf("a", "10.0.0.1"), ports: []uint16{8000}, want: []string{"a-rank-0 10.0.0.1:8000"}},
		{name: "a port for each rank", pod: podOf("a", "10.0.0.1"), ports: []uint16{8001, 8000},
			want: []string{"a-rank-0 10.0.0.1:8001", "a-rank-1 10.0.0.1:8000"}},
		{name: "IPv6", pod: podOf("a", "fd00::7"), ports: []uint16{8000}, want: []string{"a-rank-0 [fd00::7]:8000"}},
		{name: "IPv4 in IPv6", pod: podOf("a", "::ffff:10.0.0.1"), ports: []uint16{8000}, want: []string{"a-rank-0 10.0.0.1:8000"}},
		{name: "not ready", pod: podOf("a", "10.0.0.1", unready), ports: []uint16{8000}},
		{name: "ready is unknown", pod: podOf("a", "10.0.0.1", func(p *corev1.Pod) { p.Status.Conditions = nil }), ports: []uint16{8000}},
		{name: "being deleted", pod: podOf("a", "10.0.0.1", ending), ports: []uint16{8000}},
		{name: "no address", pod: podOf("a", ""), ports: []uint16{8000}},
		{name: "an address that is none", pod: podOf("a", "nowhere"), ports: []uint16{8000}, problem: `its address "nowhere" is none`},
		{name: "fewer active ports", pod: podOf("a", "10.0.0.1", annotated(activePorts, "8002, 8000")), ports: []uint16{8000, 8001, 8002},
			want: []string{"a-rank-0 10.0.0.1:8000", "a-rank-2 10.0.0.1:8002"}},
		{name: "the older annotation", pod: podOf("a", "10.0.0.1", annotated(activePortsOlder, "8001")), ports: []uint16{8000, 8001},
			want: []string{"a-rank-1 10.0.0.1:8001"}},
		{name: "the newer annotation wins", pod: podOf("a", "10.0.0.1", annotated(activePortsOlder, "8001"), annotated(activePorts, "8000")),
			ports: []uint16{8000, 8001}, want: []string{"a-rank-0 10.0.0.1:8000"}},
		{name: "an empty annotation names no port", pod: podOf("a", "10.0.0.1", annotated(activePorts, "")), ports: []uint16{8000}},
		{name: "a foreign port", pod: podOf("a", "10.0.0.1", annotated(activePorts, "8000,9000")), ports: []uint16{8000, 8001},
			want: []string{"a-rank-0 10.0.0.1:8000"}, problem: `names "9000", want ports of the pool (8000, 8001); the pod serves 1 of them`},
		{name: "no number", pod: podOf("a", "10.0.0.1", annotated(activePorts, "all")), ports: []uint16{8000},
			problem: `annotation llm-d.ai/active-ports of pod ns/a names "all"`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			trimmed, err := trimPod(c.pod)
			if err != nil {
				t.Fatal(err)
			}
			specs, problem := endpointsOf(trimmed.(*corev1.Pod), c.ports, nil)
			if got := named(specs); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
			if problem != c.problem && (c.problem == "" || !strings.Contains(problem, c.problem)) {
				t.Errorf("problem %q, want %q", problem, c.problem)
			}
		})
	}
}

// named returns name and address of endpoints, sorted.
func named(specs []epp.Spec) (names []string) {
	for _, s := range specs {
		names = append(names, s.Name+" "+s.Addr.String())
	}
	slices.Sort(names)
	return names
}

func TestTrimmedPod(t *testing.T) {
	whole := podOf("a", "10.0.0.1", annotated(activePorts, "8000"), annotated("note", strings.Repeat("x", 1000)),
		labeled("llm-d.ai/role", "prefill"), labeled("llm-d.ai/engine-type", "sglang"), labeled("inference.networking.k8s.io/engine-type", "vllm"))
	whole.UID, whole.ResourceVersion = "u", "7"
	yes := true
	whole.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "c", UID: "v"},
		{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: "w", Controller: &yes, BlockOwnerDeletion: &yes}}
	whole.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	whole.Spec = corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: "vllm"}}}
	whole.Status.HostIP, whole.Status.ContainerStatuses = "192.168.0.1", []corev1.ContainerStatus{{Name: "vllm"}}
	got, err := trimPod(whole)
	if err != nil {
		t.Fatal(err)
	}
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u", ResourceVersion: "7", Labels: whole.Labels,
			Annotations:     map[string]string{activePorts: "8000"},
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "r", Controller: &yes}}},
		Status: corev1.PodStatus{PodIP: "10.0.0.1", HostIP: "192.168.0.1", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("kept %+v\nwant %+v", got, want)
	}
	specs, _ := endpointsOf(got.(*corev1.Pod), []uint16{8000}, nil)
	if s := specs[0]; s.Pod != "a" || s.Node.String() != "192.168.0.1" {
		t.Errorf("the endpoint's pod is %q, its node %v", s.Pod, s.Node)
	}
	for name, value := range map[string]string{"llm-d.ai/role": "prefill", "llm-d.ai/engine-type": "sglang",
		"inference.networking.k8s.io/engine-type": "vllm", "app": "engine"} {
		if specs[0].Labels[name] != value {
			t.Errorf("label %s is %q, want %q", name, specs[0].Labels[name], value)
		}
	}
}

func FuzzActivePorts(f *testing.F) {
	for _, value := range []string{"", "8000", "8000, 8001", ",,", "-1", "65536", "8000x", "٣"} {
		f.Add(value)
	}
	ports := []uint16{8000, 8001}
	f.Fuzz(func(t *testing.T, value string) {
		specs, problem := endpointsOf(podOf("a", "10.0.0.1", annotated(activePorts, value)), ports, nil)
		if len(specs) > len(ports) {
			t.Errorf("%q gives %d endpoints", value, len(specs))
		}
		if empty := strings.TrimSpace(strings.ReplaceAll(value, ",", " ")) == ""; len(specs) == 0 && (problem == "") != empty {
			t.Errorf("%q takes the pod out, and what is said is %q", value, problem)
		}
	})
}

func TestRoster(t *testing.T) {
	r := newPodSet([]uint16{8000})
	a, b := podOf("a", "10.0.0.1"), podOf("b", "10.0.0.2", annotated(activePorts, "1"))
	steps := []struct {
		name    string
		do      func() bool
		changed bool
		want    []string
		serving int
		all     int
		trouble int
	}{
		{"a pod", func() bool { return r.set(a) }, true, []string{"a-rank-0 10.0.0.1:8000"}, 1, 1, 0},
		{"the same again", func() bool { return r.set(a) }, false, []string{"a-rank-0 10.0.0.1:8000"}, 1, 1, 0},
		{"one with a problem", func() bool { return r.set(b) }, true, []string{"a-rank-0 10.0.0.1:8000"}, 1, 2, 1},
		{"another label", func() bool { return r.set(podOf("a", "10.0.0.1", labeled("x", "y"))) }, true, []string{"a-rank-0 10.0.0.1:8000"}, 1, 2, 1},
		{"other ports", func() bool { r.retarget([]uint16{8000, 8001}); return true }, true,
			[]string{"a-rank-0 10.0.0.1:8000", "a-rank-1 10.0.0.1:8001"}, 1, 2, 1},
		{"the same ports", func() bool { v := r.state(); r.retarget([]uint16{8000, 8001}); return r.state() != v }, false,
			[]string{"a-rank-0 10.0.0.1:8000", "a-rank-1 10.0.0.1:8001"}, 1, 2, 1},
		{"gone", func() bool { return r.remove("a") }, true, nil, 0, 1, 1},
		{"gone twice", func() bool { return r.remove("a") }, false, nil, 0, 1, 1},
		{"the problem is gone", func() bool { return r.remove("b") }, true, nil, 0, 0, 0},
	}
	for _, s := range steps {
		if got := s.do(); got != s.changed {
			t.Errorf("%s: changed is %t", s.name, got)
		}
		specs, version := r.collect()
		serving, all := r.count()
		if got := named(specs); !slices.Equal(got, s.want) || serving != s.serving || all != s.all || len(r.problemTexts()) != s.trouble || version != r.state() {
			t.Errorf("%s: %v, %d of %d serving, trouble %q", s.name, got, serving, all, r.problemTexts())
		}
	}
}

// BenchmarkChurn is what one pod that changes costs in a pool of 2,000, up to the call of apply.
func BenchmarkChurn(b *testing.B) {
	r := newPodSet([]uint16{8000})
	pods := [2]*corev1.Pod{podOf("pod-7", "10.0.0.7"), podOf("pod-7", "10.0.0.7", func(p *corev1.Pod) { p.Status.Conditions = nil })}
	for i := range 2000 {
		r.set(podOf(fmt.Sprintf("pod-%d", i), fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)))
	}
	b.ReportAllocs()
	for i := range b.N {
		trimmed, _ := trimPod(pods[(i+1)%2])
		r.set(trimmed.(*corev1.Pod))
		if specs, _ := r.collect(); len(specs) < 1999 {
			b.Fatal(len(specs))
		}
	}
}
