package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tandem-serving/tandem/e2e/kube/container"
)

// run is one life of a container.
type run struct {
	slot      *slot
	container *container.Container
	output    *logFile
	message   string // file that it may write its last words to
	began     metav1.Time
	ip        string // of its pod
	log       *slog.Logger
	tell      func(kind, reason, message string)

	life    context.Context // ends with it
	cancel  context.CancelFunc
	guard   context.Context // ends when it is not to be restarted any more
	unguard context.CancelFunc

	waits int    // what has to happen before it counts as started
	grace *grace // not nil: it ends
}

// startDue starts the containers that should run and do not.
func (w *worker) startDue() {
	now := time.Now()
	for _, s := range due(w.slots, w.pod.Spec.RestartPolicy) {
		if !now.Before(s.pause.until) {
			w.start(s)
			continue
		}
		w.later(s.pause.until)
		switch {
		case s.pause.event == "":
		case now.Before(s.pause.begins):
			w.later(s.pause.begins)
		default:
			w.tellOf(s, corev1.EventTypeWarning, "BackOff", s.pause.event)
			state := s.pause.state
			s.waiting, s.pause.event = &state, ""
		}
	}
}

// start runs a container, or says in its status why not.
func (w *worker) start(s *slot) {
	image, err := w.node.options.Images.Find(s.image)
	if err != nil {
		w.missImage(s, err)
		return
	}
	s.misses = backoff{first: s.misses.first}
	spec, err := w.spec(s, image)
	if err != nil {
		w.failConfig(s, err)
		return
	}
	w.tellOf(s, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Container image %q already present on machine", s.image))
	if s.ran() || s.lost {
		s.restarts++
	}
	s.lost = false
	r := &run{slot: s, began: metav1.Now().Rfc3339Copy(), ip: w.ip(), log: w.log.With("container", s.name)}
	r.tell = func(kind, reason, message string) { w.tellOf(s, kind, reason, message) }
	if err := w.outlets(r, &spec); err != nil {
		w.failConfig(s, err)
		return
	}
	s.id = fmt.Sprintf("process://%s-%s-%d", w.pod.UID, s.name, s.restarts)
	w.tellOf(s, corev1.EventTypeNormal, "Created", "Created container: "+s.name)
	if r.container, err = w.sandbox().Start(spec); err != nil {
		w.failStart(r, err)
		return
	}
	w.begin(r)
}

// missImage is what happens without the image.
func (w *worker) missImage(s *slot, err error) {
	d := s.misses.fail(0)
	text := fmt.Sprintf("Back-off pulling image %q", s.image)
	s.pause = newPause(d, time.Now(), corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: text}, text)
	s.waiting = &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: err.Error()}
	if s.spec.ImagePullPolicy == corev1.PullNever {
		s.waiting.Reason, s.pause.event = "ErrImageNeverPull", ""
	}
	w.tellOf(s, corev1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %v", s.image, err))
	w.tellOf(s, corev1.EventTypeWarning, "Failed", "Error: "+s.waiting.Reason)
	w.later(s.pause.begins)
}

// failConfig is what happens where it is not known what to start. It is tried again soon, for a missing object may come.
func (w *worker) failConfig(s *slot, err error) {
	if s.waiting == nil || s.waiting.Message != err.Error() {
		w.tellOf(s, corev1.EventTypeWarning, "Failed", "Error: "+err.Error())
	}
	s.waiting = &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: err.Error()}
	s.pause = pause{until: time.Now().Add(retry)}
	w.later(s.pause.until)
}

// failStart is what happens when a program cannot be run.
func (w *worker) failStart(r *run, err error) {
	w.tellOf(r.slot, corev1.EventTypeWarning, "Failed", "Error: "+err.Error())
	if err := r.output.Close(); err != nil {
		r.log.Error("the log of a container is not whole", "error", err)
	}
	s, now := r.slot, metav1.Now().Rfc3339Copy()
	s.before, s.waiting = s.ended, nil
	s.ended = &corev1.ContainerStateTerminated{ExitCode: 128, Reason: "StartError", Message: err.Error(), StartedAt: now,
		FinishedAt: now, ContainerID: s.id}
	if s.again(w.pod.Spec.RestartPolicy) {
		s.waiting = &corev1.ContainerStateWaiting{Reason: "RunContainerError", Message: err.Error()}
		s.backOff(w.pod, 0, time.Now())
	}
	w.inbox.post(func() {}) // to look again
}

// begin follows a container that runs.
func (w *worker) begin(r *run) {
	s := r.slot
	w.tellOf(s, corev1.EventTypeNormal, "Started", "Started container "+s.name)
	s.run, s.waiting, s.running = r, nil, &corev1.ContainerStateRunning{StartedAt: r.began}
	w.public.mu.Lock()
	w.public.running[s.name] = r.container
	w.public.mu.Unlock()
	r.life, r.cancel = context.WithCancel(w.life)
	r.guard, r.unguard = context.WithCancel(r.life)
	w.tasks.Go(func() {
		<-r.container.Done()
		r.cancel()
		w.inbox.post(func() { w.ended(r) })
	})
	w.watchStart(r)
}

// watchStart runs the postStart hook and the startup probe, after which a container counts as started.
func (w *worker) watchStart(r *run) {
	if h := r.slot.spec.Lifecycle; h != nil && h.PostStart != nil {
		r.waits++
		w.tasks.Go(func() {
			if err := r.target().hook(r.life, h.PostStart); err != nil {
				w.inbox.post(func() { w.restart(r, "FailedPostStartHook", fmt.Sprintf("PostStartHook failed: %v", err), nil) })
				return
			}
			w.inbox.post(func() { w.started(r) })
		})
	}
	if p := r.slot.spec.StartupProbe; p != nil {
		r.waits++
		w.probe(r, startup, p, false, func(good bool) {
			if good {
				w.started(r)
			} else {
				w.restart(r, "Killing", fmt.Sprintf("Container %s failed startup probe, will be restarted", r.slot.name), p)
			}
		})
	}
	r.waits++
	w.started(r)
}

// started takes note of one of the things that a start waits for, and lets the other probes begin after the last.
func (w *worker) started(r *run) {
	s := r.slot
	if r.waits--; r.waits > 0 || s.run != r {
		return
	}
	s.started, s.passed = true, true
	if p := s.spec.ReadinessProbe; p != nil {
		w.probe(r, readiness, p, false, func(good bool) { s.ready = good })
	} else {
		s.ready = true
	}
	if p := s.spec.LivenessProbe; p != nil && r.guard.Err() == nil {
		w.probe(r, liveness, p, true, func(good bool) {
			if !good {
				w.restart(r, "Killing", fmt.Sprintf("Container %s failed liveness probe, will be restarted", s.name), p)
			}
		})
	}
	w.inbox.post(func() {}) // the next init container may be due
}

// probe asks a container again and again. verdict is told of verdicts, in the worker's goroutine, while the container runs.
func (w *worker) probe(r *run, u use, p *corev1.Probe, good bool, verdict func(good bool)) {
	ctx := r.guard
	if u == readiness {
		ctx = r.life // it goes on while the container ends
	}
	ctx, stop := context.WithCancel(ctx)
	w.tasks.Go(func() {
		defer stop()
		r.target().follow(ctx, p, good, func(err error, decided bool) {
			if err != nil {
				r.tell(corev1.EventTypeWarning, "Unhealthy", fmt.Sprintf("%s probe failed: %v", u, err))
			}
			if !decided {
				return
			}
			if u == startup {
				stop()
			}
			w.inbox.post(func() {
				if r.slot.run == r {
					verdict(err == nil)
				}
			})
		})
	})
}

// restart ends a container so that it is started again. The probe that wants it may grant it a time of its own.
func (w *worker) restart(r *run, reason, message string, p *corev1.Probe) {
	if r.slot.run != r || r.grace != nil {
		return
	}
	kind := corev1.EventTypeNormal
	if p == nil {
		kind = corev1.EventTypeWarning
	}
	w.tellOf(r.slot, kind, reason, message)
	d := graceOf(w.pod)
	if p != nil && p.TerminationGracePeriodSeconds != nil {
		d = time.Duration(*p.TerminationGracePeriodSeconds) * time.Second
	}
	w.endRun(r, newGrace(w.life, d), nil)
}

// ended takes note of the end of a container.
func (w *worker) ended(r *run) {
	s := r.slot
	w.public.mu.Lock()
	delete(w.public.running, s.name)
	w.public.mu.Unlock()
	if err := r.output.Close(); err != nil {
		r.log.Error("the log of a container is not whole", "error", err)
	}
	r.unguard()
	if r.grace != nil && r.grace != w.grace {
		r.grace.stop()
	}
	code, _ := r.container.Exit()
	s.run, s.running, s.started, s.ready = nil, nil, false, false
	s.before = s.ended
	s.ended = &corev1.ContainerStateTerminated{ExitCode: int32(code), Reason: "Completed", StartedAt: r.began,
		FinishedAt: metav1.Now().Rfc3339Copy(), ContainerID: s.id}
	if code != 0 {
		s.ended.Reason = "Error"
	}
	s.ended.Message = r.lastWords(code)
	if s.again(w.pod.Spec.RestartPolicy) {
		s.backOff(w.pod, time.Since(r.began.Time), time.Now())
	}
}

const (
	// maxMessage bounds what is read of the file for last words, in bytes; maxTail and tailLines bound what of the log
	// takes its place. The API documents these numbers.
	maxMessage = 4096
	maxTail    = 2048
	tailLines  = 80
)

// lastWords is what the container has left as a message.
func (r *run) lastWords(code int) string {
	data, err := os.ReadFile(r.message)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.log.Warn("the last words of a container cannot be read", "error", err)
	}
	if len(data) > 0 || code == 0 || r.slot.spec.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError {
		return string(data[:min(len(data), maxMessage)])
	}
	text, err := r.output.tail(tailLines, maxTail)
	if err != nil {
		r.log.Warn("the last words of a container cannot be read", "error", err)
	}
	return text
}

// target returns how its probes and hooks reach it.
func (r *run) target() target { return target{ip: r.ip, spec: r.slot.spec, exec: r.container.Exec} }

// outlets makes the files for what a container leaves behind: its log, and a file for its last words.
func (w *worker) outlets(r *run, spec *container.Spec) (err error) {
	dir := filepath.Join(w.dir(), "messages")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	r.message = filepath.Join(dir, r.slot.name)
	if err := os.WriteFile(r.message, nil, 0o666); err != nil {
		return err
	}
	if err := os.Chmod(r.message, 0o666); err != nil { // whatever the umask
		return err
	}
	path := or(r.slot.spec.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	spec.Mounts = append(spec.Mounts, container.Mount{Source: r.message, Target: path})
	r.output, err = w.newLog(r.slot)
	spec.Log = r.output
	return err
}

// newLog makes the log of the next run; of those before only the last is kept.
func (w *worker) newLog(s *slot) (*logFile, error) {
	dir := filepath.Join(w.dir(), "logs", s.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	l, err := createLog(filepath.Join(dir, strconv.Itoa(int(s.restarts))+".log"))
	if err != nil {
		return nil, err
	}
	w.public.mu.Lock()
	defer w.public.mu.Unlock()
	w.public.logs[s.name] = append([]*logFile{l}, w.public.logs[s.name]...)
	if kept := w.public.logs[s.name]; len(kept) > 2 {
		w.public.logs[s.name] = kept[:2]
		if err := os.Remove(kept[2].path); err != nil {
			w.log.Warn("an old log was not removed", "error", err)
		}
	}
	return l, nil
}
