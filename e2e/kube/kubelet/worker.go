package kubelet

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-serving/tandem/e2e/kube/container"
)

// retry is how often something is tried again that a pod needs before its containers, in case of failure.
const retry = time.Second

// worker runs one pod. One goroutine owns it; others report to it by post. After each report it checks the whole pod and
// takes the next steps.
type worker struct {
	node  *Node
	born  time.Time
	ref   corev1.ObjectReference // of the pod
	log   *slog.Logger
	inbox inbox
	life  context.Context // ends when the node does, however
	end   context.CancelFunc
	tasks sync.WaitGroup // goroutines for its containers

	report *reporter
	public public

	pod     *corev1.Pod
	slots   []*slot // init containers in their order, then the others
	volumes *volumes
	course
}

// course is the progress of a pod.
type course struct {
	began      metav1.Time
	next       time.Time // when to look again at the latest; zero: when something happens
	conditions []corev1.PodCondition
	refused    error           // why it is not run at all
	told       map[string]bool // complaints that were made
	renew      time.Time       // when volumes have to be made again; zero: when something happens
	filled     bool            // the volumes are there, and as they should be
	gone       bool            // there is no such object any more
	over       bool            // nothing of it runs, and nothing will
	restored   bool            // it was over when this kubelet first saw it: its status is not to be touched
	grace      *grace          // not nil: it ends
	reason     string          // why it failed as a whole
	message    string
}

// inbox is a queue of functions for a goroutine.
type inbox struct {
	wake chan struct{} // of capacity 1

	mu   sync.Mutex
	todo []func()
}

// post queues a function. It does not wait.
func (b *inbox) post(do func()) {
	b.mu.Lock()
	b.todo = append(b.todo, do)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *inbox) take() []func() {
	b.mu.Lock()
	defer b.mu.Unlock()
	todo := b.todo
	b.todo = nil
	return todo
}

// public is what others may ask a worker for while it works.
type public struct {
	mu      sync.Mutex
	sandbox *container.Sandbox
	running map[string]*container.Container
	logs    map[string][]*logFile // by container: of its last run, and of the one before
}

func newWorker(n *Node, pod *corev1.Pod) *worker {
	w := &worker{node: n, born: time.Now(), pod: pod, ref: reference(pod),
		log:    n.options.Log.With("pod", pod.Namespace+"/"+pod.Name),
		inbox:  inbox{wake: make(chan struct{}, 1)},
		public: public{running: map[string]*container.Container{}, logs: map[string][]*logFile{}},
	}
	w.life, w.end = context.WithCancel(n.life)
	w.report = newReporter(n, pod, w.log, func() { w.inbox.post(func() { w.gone = true }) })
	w.volumes = &volumes{dir: filepath.Join(w.dir(), "volumes"), from: n, written: map[string]payload{},
		tokens: map[string]token{}}
	w.began, w.told, w.refused = metav1.Now().Rfc3339Copy(), map[string]bool{}, refusal(pod)
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		w.addSlot(c, initKind(c))
	}
	for i := range pod.Spec.Containers {
		w.addSlot(&pod.Spec.Containers[i], ordinary)
	}
	w.restore()
	return w
}

func initKind(c *corev1.Container) kind {
	if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
		return sidecar
	}
	return initial
}

// dir returns the pod's folder.
func (w *worker) dir() string { return filepath.Join(w.node.options.Dir, "pods", string(w.ref.UID)) }

// loop works until the pod is gone or life ends.
func (w *worker) loop() {
	var reports sync.WaitGroup
	reports.Go(func() { w.report.loop(w.life) })
	defer reports.Wait()
	defer w.end()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-w.inbox.wake:
		case <-timer.C:
		case <-w.life.Done():
			w.cut()
			return
		}
		for _, do := range w.inbox.take() {
			do()
		}
		w.next = time.Time{}
		w.step()
		if w.over && w.gone {
			w.remove()
			return
		}
		w.say()
		if !w.next.IsZero() {
			timer.Reset(time.Until(w.next))
		}
	}
}

// later has the worker look again at a time.
func (w *worker) later(at time.Time) {
	if w.next.IsZero() || at.Before(w.next) {
		w.next = at
	}
}

// step does what is to be done next.
func (w *worker) step() {
	w.checkDeadline()
	if !w.over && w.ends() && w.terminated() {
		w.finish()
	}
	switch {
	case w.over && w.pod.DeletionTimestamp != nil:
		w.report.leave()
	case w.over || w.grace != nil:
	case w.refused != nil:
		w.refuse()
	case w.setUp():
		w.startDue()
	}
}

// checkDeadline fails a pod that may not be active any longer.
func (w *worker) checkDeadline() {
	seconds := w.pod.Spec.ActiveDeadlineSeconds
	if seconds == nil || w.over || w.reason != "" {
		return
	}
	deadline := w.began.Add(time.Duration(*seconds) * time.Second)
	if time.Now().Before(deadline) {
		w.later(deadline)
		return
	}
	w.reason, w.message = "DeadlineExceeded", "the pod was active for longer than its activeDeadlineSeconds"
	w.tell(corev1.EventTypeNormal, w.reason, w.message)
}

// setUp makes what containers need before they can start; false: it is not there yet.
func (w *worker) setUp() bool {
	if err := w.fill(); err != nil {
		w.complain("FailedMount", err)
		return false
	}
	if w.sandbox() != nil {
		return true
	}
	sandbox, err := w.node.options.Host.NewSandbox(w.life, w.node.sandboxOptions(w.pod))
	if err != nil {
		w.complain("FailedCreatePodSandBox", err)
		return false
	}
	w.public.mu.Lock()
	defer w.public.mu.Unlock()
	w.public.sandbox = sandbox
	return true
}

// fill makes the volumes, and brings them up to date when something has changed that they are made of.
func (w *worker) fill() error {
	if w.filled && (w.renew.IsZero() || time.Now().Before(w.renew)) {
		if !w.renew.IsZero() {
			w.later(w.renew)
		}
		return nil
	}
	if err := os.MkdirAll(w.volumes.dir, 0o755); err != nil {
		return err
	}
	var err error
	if w.renew, err = w.volumes.prepare(w.life, w.in()); err != nil && w.sandbox() == nil {
		return err
	}
	if err != nil {
		w.complain("FailedMount", err)
		return nil // what is there is good enough for what runs
	}
	w.filled = true
	return nil
}

// complain tells of a failure once, and has it tried again.
func (w *worker) complain(reason string, err error) {
	if w.life.Err() != nil {
		return
	}
	if key := reason + err.Error(); !w.told[key] {
		w.told[key] = true
		w.tell(corev1.EventTypeWarning, reason, err.Error())
	}
	w.later(time.Now().Add(retry))
}

// sandbox is what its containers run in, or nil.
func (w *worker) sandbox() *container.Sandbox {
	w.public.mu.Lock()
	defer w.public.mu.Unlock()
	return w.public.sandbox
}

// ip returns the pod's address, or "".
func (w *worker) ip() string {
	if s := w.sandbox(); s != nil {
		return s.IP().String()
	}
	return ""
}

// in returns the pod with what is known of it here.
func (w *worker) in() inPod {
	return inPod{pod: w.pod, podIP: w.ip(), hostIP: w.node.options.Address.String(), allocatable: w.node.options.Capacity}
}

// say reports the status, if it has changed.
func (w *worker) say() {
	if w.restored {
		return
	}
	facts := podFacts{pod: w.pod, hostIP: w.node.options.Address.String(), podIP: w.ip(), began: w.began,
		sandbox: w.sandbox() != nil && !w.over, over: w.over, reason: w.reason, message: w.message}
	for _, s := range w.slots {
		facts.containers = append(facts.containers, s.facts)
	}
	status := facts.status(w.conditions, metav1.Now().Rfc3339Copy())
	w.conditions = status.Conditions
	w.report.set(status)
}

// see takes the pod as the API server has it now.
func (w *worker) see(pod *corev1.Pod) {
	if !sameMetadata(w.pod, pod) {
		w.filled = false // a downward API volume may show it
	}
	w.pod = pod
	w.report.check(pod)
}

// finish takes apart what the pod had. What its containers printed stays.
func (w *worker) finish() {
	w.over = true
	if s := w.sandbox(); s != nil {
		if err := s.Close(); err != nil {
			w.log.Error("the sandbox of a pod was not closed", "error", err)
		}
	}
	if err := os.RemoveAll(w.volumes.dir); err != nil {
		w.log.Error("the volumes of a pod were not removed", "error", err)
	}
}

// cut ends it without a word.
func (w *worker) cut() {
	if s := w.sandbox(); s != nil {
		if err := s.Close(); err != nil {
			w.log.Error("the sandbox of a pod was not closed", "error", err)
		}
	}
	w.letGo()
}

// remove ends it when the pod is no more.
func (w *worker) remove() {
	w.letGo()
	w.node.forget(w)
	if err := os.RemoveAll(w.dir()); err != nil {
		w.log.Error("the files of a pod were not removed", "error", err)
	}
}

// letGo waits for what was begun for the containers, all of which have ended.
func (w *worker) letGo() {
	w.end()
	if w.grace != nil {
		w.grace.stop()
	}
	w.tasks.Wait()
}
