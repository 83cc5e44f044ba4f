package cluster

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// scenarioScale: each role grows and shrinks under load, and prefill goes away altogether for a while.
var scenarioScale = scenario{name: "scale", release: true, ci: true, run: func(t *testing.T, r *run) {
	l := r.press(t, r.llm, 0)
	l.await(t, 20)
	for _, component := range []string{"decode", "prefill"} {
		old := r.llm.readyPods(r.ctx, t, component)
		r.llm.scale(t, component, 3)
		r.llm.awaitSettled(t, component, 90*time.Second)
		added := slices.DeleteFunc(r.llm.readyPods(r.ctx, t, component), func(p corev1.Pod) bool { return contains(old, p) })
		if len(added) != 1 {
			t.Fatalf("there is no new pod of %s among %s", component, podNames(added))
		}
		r.mustServe(t, added[0])
		r.llm.scale(t, component, 2)
		r.llm.awaitSettled(t, component, 60*time.Second)
		l.await(t, 20)
	}
	n := l.end(t)
	r.saw("decode and prefill 2 to 3 and back: the new pods served, the leaving ones drained, %d requests right", n.right)
	r.withoutPrefill(t)
}}

func contains(pods []corev1.Pod, p corev1.Pod) bool {
	return slices.ContainsFunc(pods, func(q corev1.Pod) bool { return q.UID == p.UID })
}

// mustServe waits until a pod's engine has finished requests.
func (r *run) mustServe(t *testing.T, pod corev1.Pod) {
	t.Helper()
	r.await(t, pod.Name+" serves", 30*time.Second, func(ctx context.Context) (string, bool) {
		page, err := r.page(ctx, pod.Namespace, pod.Name, enginePort, "metrics")
		if err != nil {
			return err.Error(), false
		}
		served := sum(page, "vllm:request_success_total")
		return fmt.Sprintf("%v requests", served), served >= 3
	})
}

// withoutPrefill scales prefill to nothing and back. Meanwhile decode prefills a part of the long prompts itself, and the others
// are told to come again.
func (r *run) withoutPrefill(t *testing.T) {
	t.Helper()
	l := r.press(t, r.llm, refusalsExcused)
	l.await(t, 10)
	r.llm.scale(t, "prefill", 0)
	r.await(t, "long prompts are computed by decode or refused", time.Minute, func(context.Context) (string, bool) {
		n, why := l.now(), l.decisions()
		return fmt.Sprintf("%+v, %v", n, why), n.refused >= 5 && why["local;reason=no-prefill"] >= 1
	})
	r.llm.scale(t, "prefill", 2)
	r.llm.awaitSettled(t, "prefill", 90*time.Second)
	n, remote := l.now(), l.now().remote
	r.await(t, "long prompts are remote again", 30*time.Second, func(context.Context) (string, bool) {
		n = l.now()
		return fmt.Sprintf("%+v", n), n.remote >= remote+20
	})
	why := l.decisions()
	n = l.end(t)
	r.saw("prefill to 0 and back: %d long prompts computed by decode, %d refused with 503 and Retry-After", why["local;reason=no-prefill"], n.refused)
}
