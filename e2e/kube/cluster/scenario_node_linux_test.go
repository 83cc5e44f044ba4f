package cluster

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// lost is the node that scenarioNodeGone takes away.
const lost = "node-0"

// fallen are the components of which a pod is on the node that goes. A proxy is not: who is connected to one that dies loses
// his connection, and how soon others are found is the matter of the Service, not ours.
var fallen = []string{"prefill", "decode", "epp"}

// scenarioNodeGone: a node loses its power, with a prefill, a decode and a picker pod on it. No component is told: what is sent
// there vanishes. The cluster notices, says so, and makes the pods again elsewhere; when the node comes back, what was on
// it is gone.
//
// Streams of the decode pod break off: the sidecar, which would have written the error event, died with the engine, and
// Envoy ends them when its keep-alive finds that the peer is gone, after 25 s. All other requests are answered.
var scenarioNodeGone = scenario{name: "node gone", release: true, local: "cuts the power of a node",
	run: func(t *testing.T, r *run) {
		r.arrange(t)
		onIt := r.podsOn(t, lost)
		l := r.press(t, r.llm, cutsExcused|eventsExcused)
		l.await(t, 20)
		if n := l.now(); n.cut+n.events > 0 {
			t.Errorf("before anything was done %d streams were cut and %d ended by an event", n.cut, n.events)
		}

		// What died held hand-offs of the engines that live, which are not released.
		r.strands = cutLimit
		r.silence(t, onIt)
		r.local.nodes[lost].Crash()
		began := time.Now()
		r.awaitNode(t, lost, corev1.ConditionUnknown)
		noticed := time.Since(began)
		r.mustEvict(t, onIt)
		for _, component := range components {
			r.awaitElsewhere(t, component)
		}
		whole := time.Since(began)
		l.await(t, 40)

		r.startNode(t, lost)
		r.awaitNode(t, lost, corev1.ConditionTrue)
		r.await(t, "the pods that went with the node are gone", time.Minute, func(ctx context.Context) (string, bool) {
			left := r.podsOn(t, lost)
			gone := !slices.ContainsFunc(left, func(p corev1.Pod) bool { return slices.Contains(identities(onIt), identity(p)) })
			return podNames(left), gone
		})
		l.await(t, 20)
		// Only now: what is sent into silence is given up late.
		n := l.end(t)
		r.saw("NotReady after %v, all pods again elsewhere after %v; %d requests were right, %d streams broke off, %d ended by an event",
			noticed.Round(100*time.Millisecond), whole.Round(100*time.Millisecond), n.right, n.cut, n.events)
		if n.cut+n.events > clients {
			t.Errorf("%d streams were cut and %d ended by an event; no more than %d were running when the node went", n.cut,
				n.events, clients)
		}
	}}

// arrange has a pod of each of the fallen on the node that will go, and no proxy.
func (r *run) arrange(t *testing.T) {
	t.Helper()
	others := slices.DeleteFunc(slices.Sorted(maps.Keys(r.local.nodes)), func(n string) bool { return n == lost })
	cordon := func(how string, nodes ...string) { r.mustKubectl(t, append([]string{how}, nodes...)...) }
	move := func(component string, which func(corev1.Pod) bool) {
		pods := r.llm.readyPods(r.ctx, t, component)
		if at := slices.IndexFunc(pods, which); at >= 0 {
			r.mustKubectl(t, "delete", "pod", pods[at].Name, "-n", namespace, "--wait=false")
		}
	}
	defer cordon("uncordon", append(others, lost)...)
	cordon("cordon", others...)
	for _, component := range fallen {
		here := func(p corev1.Pod) bool { return p.Spec.NodeName == lost }
		if !slices.ContainsFunc(r.llm.readyPods(r.ctx, t, component), here) {
			move(component, func(corev1.Pod) bool { return true })
		}
	}
	for _, component := range fallen {
		r.llm.awaitSettled(t, component, time.Minute)
	}
	cordon("uncordon", others...)
	cordon("cordon", lost)
	for range 2 { // both may be there
		move("proxy", func(p corev1.Pod) bool { return p.Spec.NodeName == lost })
		r.llm.awaitSettled(t, "proxy", time.Minute)
	}
	on := map[string]bool{}
	for _, p := range r.podsOn(t, lost) {
		on[p.Labels["app.kubernetes.io/component"]] = true
	}
	if got := slices.Sorted(maps.Keys(on)); !slices.Equal(got, slices.Sorted(slices.Values(fallen))) {
		t.Fatalf("on %s are pods of %v, and should be of %v", lost, got, fallen)
	}
}

// silence drops all that these pods send, even that a connection is closed.
func (r *run) silence(t *testing.T, pods []corev1.Pod) {
	t.Helper()
	others := []netip.Addr{bridge}
	for _, p := range r.llm.pods(r.ctx, t, "") {
		others = append(others, netip.MustParseAddr(p.Status.PodIP))
	}
	for _, p := range pods {
		for _, to := range others {
			if to.String() == p.Status.PodIP {
				continue
			}
			if err := r.sandbox(t, p).Drop(to); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// podsOn returns the release's pods on a node.
func (r *run) podsOn(t *testing.T, node string) []corev1.Pod {
	t.Helper()
	return slices.DeleteFunc(r.llm.pods(r.ctx, t, ""), func(p corev1.Pod) bool { return p.Spec.NodeName != node })
}

// awaitNode waits until the condition Ready of a node has a status: Unknown is that of one which is not heard of.
func (r *run) awaitNode(t *testing.T, name string, want corev1.ConditionStatus) {
	t.Helper()
	r.await(t, fmt.Sprintf("Ready of %s is %s", name, want), time.Minute, func(ctx context.Context) (string, bool) {
		node, err := r.admin.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err.Error(), false
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady {
				return fmt.Sprintf("%s: %s %s", c.Status, c.Reason, c.Message), c.Status == want
			}
		}
		return "no condition", false
	})
}

// mustEvict waits until the pods of a node that is gone are marked: not ready, and to be deleted because of the node's
// taint.
func (r *run) mustEvict(t *testing.T, pods []corev1.Pod) {
	t.Helper()
	for _, pod := range pods {
		r.await(t, pod.Name+" is evicted", time.Minute, func(ctx context.Context) (string, bool) {
			now, err := r.admin.CoreV1().Pods(namespace).Get(ctx, pod.Name, metav1.GetOptions{})
			if err != nil {
				return err.Error(), false
			}
			evicted := now.DeletionTimestamp != nil && !isReady(*now) && podCondition(*now,
				corev1.DisruptionTarget) == corev1.ConditionTrue
			return fmt.Sprintf("deletion %v, conditions %+v", now.DeletionTimestamp, now.Status.Conditions), evicted
		})
		r.llm.mustHaveEvents(t, pod.Name, "NodeNotReady", "TaintManagerEviction")
	}
	r.saw("pods of the node: not ready, DisruptionTarget, events NodeNotReady and TaintManagerEviction")
}

// awaitElsewhere waits until a component has all its pods on nodes that are there. Those of the lost one are listed until it
// is back.
func (r *run) awaitElsewhere(t *testing.T, component string) {
	t.Helper()
	r.await(t, "two pods of "+component+" elsewhere", 90*time.Second, func(ctx context.Context) (string, bool) {
		pods := slices.DeleteFunc(r.llm.readyPods(ctx, t, component), func(p corev1.Pod) bool { return p.Spec.NodeName == lost })
		return podNames(pods), len(pods) == 2
	})
}
