package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// leastGrace is the time between SIGTERM and SIGKILL that a container has in any case.
const leastGrace = 2 * time.Second

// grace is the time that containers have to end, hooks included. It can be made shorter while it runs.
type grace struct {
	context.Context // ends with it

	mu     sync.Mutex
	end    time.Time
	timer  *time.Timer
	cancel context.CancelFunc
}

func newGrace(ctx context.Context, d time.Duration) *grace {
	g := &grace{end: time.Now().Add(d)}
	g.Context, g.cancel = context.WithCancel(ctx)
	g.timer = time.AfterFunc(d, g.cancel)
	return g
}

// shorten lets it end in a time, if it would end later.
func (g *grace) shorten(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if end := time.Now().Add(d); end.Before(g.end) {
		g.end = end
		g.timer.Reset(d)
	}
}

// stop releases what it holds.
func (g *grace) stop() {
	g.timer.Stop()
	g.cancel()
}

// terminate ends a container as its pod asks for it: the preStop hook first, then, once those have ended that it has to wait
// for, SIGTERM, and SIGKILL when the time is over. It returns when the container has ended or life does.
func (r *run) terminate(life context.Context, g *grace, after []<-chan struct{}) {
	ended, stop := context.WithCancel(g)
	defer stop()
	defer context.AfterFunc(life, stop)()
	go func() { // ends with the container, which life ends too
		<-r.container.Done()
		stop()
	}()
	r.preStop(ended)
	for _, done := range after {
		select {
		case <-done:
		case <-ended.Done():
		}
	}
	if err := r.container.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		r.log.Error("a container was not told to end", "error", err)
	}
	r.awaitEnd(life, g)
}

// awaitEnd kills the container when its time is over.
func (r *run) awaitEnd(life context.Context, g *grace) {
	least := time.NewTimer(leastGrace)
	defer least.Stop()
	for over, waited := g.Done(), least.C; over != nil || waited != nil; {
		select {
		case <-r.container.Done():
			return
		case <-life.Done():
			return // who ended it kills
		case <-over:
			over = nil
		case <-waited:
			waited = nil
		}
	}
	if err := r.container.Kill(); err != nil {
		r.log.Error("a container was not killed", "error", err)
	}
}

// preStop runs the hook, if there is one and time for it.
func (r *run) preStop(ctx context.Context) {
	hooks := r.slot.spec.Lifecycle
	if hooks == nil || hooks.PreStop == nil || ctx.Err() != nil {
		return
	}
	if err := r.target().hook(ctx, hooks.PreStop); err != nil && ctx.Err() == nil {
		r.tell(corev1.EventTypeWarning, "FailedPreStopHook", fmt.Sprintf("PreStopHook failed: %v", err))
	}
}

// hook runs what is to be done after a start or before an end.
func (t target) hook(ctx context.Context, h *corev1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		return t.run(ctx, h.Exec.Command)
	case h.HTTPGet != nil:
		code, err := t.get(ctx, h.HTTPGet)
		if err == nil && (code < 200 || code >= 400) {
			err = fmt.Errorf("the answer has status %d", code)
		}
		return err
	case h.Sleep != nil:
		select {
		case <-time.After(time.Duration(h.Sleep.Seconds) * time.Second):
		case <-ctx.Done():
		}
		return nil
	}
	return fmt.Errorf("%w: this kind of hook", errUnsupported)
}

// graceOf returns the time that the containers of a pod have to end.
func graceOf(pod *corev1.Pod) time.Duration {
	switch {
	case pod.DeletionGracePeriodSeconds != nil:
		return time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		return time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// ends reports whether the pod is to end.
func (w *worker) ends() bool {
	return w.grace != nil || w.gone || w.pod.DeletionTimestamp != nil || w.reason != "" ||
		complete(w.slots, w.pod.Spec.RestartPolicy)
}

// terminated sees to it that all containers end, and tells whether they have.
func (w *worker) terminated() bool {
	d := graceOf(w.pod)
	if w.gone {
		d = 0
	}
	if w.grace == nil {
		w.grace = newGrace(w.life, d)
		w.terminate()
	}
	w.grace.shorten(d)
	done := true
	for _, s := range w.slots {
		if s.run != nil {
			s.run.grace.shorten(d)
			done = false
		}
	}
	return done
}

// terminate begins to end all containers: sidecars after all others, and in reverse order.
func (w *worker) terminate() {
	for i, s := range w.slots {
		if s.run == nil {
			continue
		}
		w.tellOf(s, corev1.EventTypeNormal, "Killing", "Stopping container "+s.name)
		s.run.unguard()
		if s.run.grace != nil {
			continue
		}
		var after []<-chan struct{}
		for _, later := range w.slots[i+1:] {
			if s.kind == sidecar && later.run != nil {
				after = append(after, later.run.container.Done())
			}
		}
		w.endRun(s.run, w.grace, after)
	}
}

// endRun ends a container, after others have ended.
func (w *worker) endRun(r *run, g *grace, after []<-chan struct{}) {
	r.grace = g
	r.unguard()
	w.tasks.Go(func() { r.terminate(w.life, g, after) })
}
