package kubelet

import (
	"context"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// callLimit bounds one call of the API server.
const callLimit = 10 * time.Second

// reporter brings the status of one pod to the API server, in a goroutine of its own: a pod runs on while there is none.
// Only the newest status matters.
type reporter struct {
	pods corev1client.PodInterface
	ref  corev1.ObjectReference
	log  *slog.Logger
	wake chan struct{} // of capacity 1
	gone func()        // is called when the API server knows the pod no more

	mu      sync.Mutex // guards the fields below
	status  *corev1.PodStatus
	sent    bool // status was
	leaving bool // the object is to be deleted after that
}

func newReporter(n *Node, pod *corev1.Pod, log *slog.Logger, gone func()) *reporter {
	return &reporter{pods: n.client.CoreV1().Pods(pod.Namespace), ref: reference(pod), log: log, gone: gone,
		wake: make(chan struct{}, 1)}
}

// set says what the status is now.
func (r *reporter) set(status corev1.PodStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status != nil && equality.Semantic.DeepEqual(*r.status, status) {
		return
	}
	r.status, r.sent = &status, false
	r.rouse()
}

// check has the status sent again if another client has changed it.
func (r *reporter) check(pod *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status == nil || !r.sent || same(pod.Status, *r.status) {
		return
	}
	r.sent = false
	r.rouse()
}

// same reports whether a status says what was to be said.
func same(status, said corev1.PodStatus) bool {
	// The order of conditions is no difference.
	return len(merge(status, said).Conditions) == len(status.Conditions) && contains(status.Conditions, said.Conditions) &&
		equality.Semantic.DeepEqual(noConditions(merge(status, said)), noConditions(status))
}

func contains(all, some []corev1.PodCondition) bool {
	for _, c := range some {
		found := false
		for _, other := range all {
			found = found || equality.Semantic.DeepEqual(c, other)
		}
		if !found {
			return false
		}
	}
	return true
}

func noConditions(status corev1.PodStatus) corev1.PodStatus {
	status.Conditions = nil
	return status
}

// leave has the object deleted once the status was sent. It may be called again.
func (r *reporter) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.leaving {
		r.leaving = true
		r.rouse()
	}
}

func (r *reporter) rouse() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// loop reports until the context ends or the pod is gone.
func (r *reporter) loop(ctx context.Context) {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-again.C:
		}
		err := r.report(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case apierrors.IsNotFound(err):
			r.gone()
			return
		case err != nil:
			r.log.Info("the status of a pod cannot be reported yet", "error", err)
			again.Reset(retry)
		}
	}
}

// report does what is to be done. A pod of that name that is another one is as good as none.
func (r *reporter) report(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	r.mu.Lock()
	status, sent, leaving := r.status, r.sent, r.leaving
	r.mu.Unlock()
	if !sent && status != nil {
		if err := r.send(ctx, status); err != nil {
			return err
		}
		r.mu.Lock()
		sent = r.status == status
		r.sent = sent
		r.mu.Unlock()
		if !sent {
			r.rouse()
			return nil
		}
	}
	if !leaving {
		return nil
	}
	now := int64(0)
	err := r.pods.Delete(ctx, r.ref.Name, metav1.DeleteOptions{GracePeriodSeconds: &now,
		Preconditions: &metav1.Preconditions{UID: &r.ref.UID}})
	if err == nil || apierrors.IsConflict(err) {
		return r.absence()
	}
	return err
}

// absence is the error for a pod that the API server does not know.
func (r *reporter) absence() error { return apierrors.NewNotFound(corev1.Resource("pods"), r.ref.Name) }

func (r *reporter) send(ctx context.Context, status *corev1.PodStatus) error {
	for {
		pod, err := r.pods.Get(ctx, r.ref.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod.UID != r.ref.UID {
			return r.absence()
		}
		if same(pod.Status, *status) {
			return nil
		}
		pod.Status = merge(pod.Status, *status)
		if _, err = r.pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// reference names a pod in events and preconditions.
func reference(pod *corev1.Pod) corev1.ObjectReference {
	return corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
		ResourceVersion: pod.ResourceVersion}
}

// tell records an event of the pod.
func (w *worker) tell(kind, reason, message string) {
	ref := w.ref
	w.node.recorder.Event(&ref, kind, reason, message)
}

// tellOf records an event of a container.
func (w *worker) tellOf(s *slot, kind, reason, message string) {
	ref := w.ref
	list := "containers"
	if s.kind != ordinary {
		list = "initContainers"
	}
	ref.FieldPath = "spec." + list + "{" + s.name + "}"
	w.node.recorder.Event(&ref, kind, reason, message)
}
