package handoff

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// startWatch has a function watch the prefill pod, in the background, until endWatch.
func (p *legPair) startWatch(watch func(context.Context)) {
	var ctx context.Context
	ctx, p.stopWatch = context.WithCancel(p.x.Context)
	p.gone, p.watched = make(chan error, 1), make(chan struct{})
	go func() {
		defer close(p.watched)
		watch(ctx)
	}()
}

const (
	// watchPause is the time between two probes of a prefill pod whose leg runs.
	watchPause = 2 * time.Second
	// watchTries is how many probes in a row must get no answer: a busy pod may be slow to answer one.
	watchTries = 3
	// watchQuiet is how many pauses a leg may take until decode is suspected to look for another process.
	watchQuiet = 2
)

// watchRoute asks, until ctx ends, whether decode looks for the prefill pod where it is: an engine that was started anew may be
// healthy, and never hear of the decode leg.
func (p *legPair) watchRoute(ctx context.Context, r dialect.Rerouter) {
	tick := time.NewTicker(watchPause)
	defer tick.Stop()
	for pauses := 1; ; pauses++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if pauses >= watchQuiet && p.x.legs.probe(ctx, p.target) == nil && p.x.legs.misrouted(ctx, r, p.target) {
			p.x.legs.reroute(r, p.target)
			p.gone <- &prefillError{cause: "misrouted", reason: pd.PrefillFailed, err: errMisrouted}
			return
		}
	}
}

// probe asks a prefill pod whether it is healthy.
func (legs *Legs) probe(ctx context.Context, at pd.Target) error {
	ctx, cancel := context.WithTimeout(ctx, transport.ProbeTimeout)
	defer cancel()
	return legs.Prefill(at).Healthy(ctx)
}

const (
	// pushPause is the time between two probes of a prefill pod that sends the KV cache. It is usually there before the first one.
	pushPause = 250 * time.Millisecond
	// pushTime is for how long the pauses are so short, and for how long a prefill pod is watched whose decode leg is no stream: that
	// tells nothing until all is generated, and the KV cache has probably arrived.
	pushTime = 5 * time.Second
)

// watchPush probes a prefill pod that has answered, until ctx ends: decode waits for a KV cache that a dead one will never send. A
// closed port is the end of a pod. Any other error may be that of a busy one. gone is called at most once.
func (legs *Legs) watchPush(ctx context.Context, at pd.Target, stream bool, gone func(error)) {
	tick, late := time.NewTicker(pushPause), time.NewTimer(pushTime)
	defer tick.Stop()
	defer late.Stop()
	for failed := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-late.C:
			if !stream {
				return
			}
			tick.Reset(watchPause)
			continue
		case <-tick.C:
		}
		err := legs.probe(ctx, at)
		if failed++; err == nil {
			failed = 0
		}
		switch {
		case ctx.Err() != nil:
			return
		case failed == watchTries, errors.Is(err, syscall.ECONNREFUSED):
			gone(err)
			return
		}
	}
}

// endWatch ends the watch of the prefill pod: decode streams for minutes, and needs prefill no more.
func (p *legPair) endWatch() {
	if p.watched != nil {
		p.stopWatch()
		<-p.watched
		p.watched = nil
	}
}

// handedOver notes that prefill has computed the prompt, and that decode still waits.
func (p *legPair) handedOver() {
	if p.pushes {
		p.startWatch(func(ctx context.Context) {
			p.x.legs.watchPush(ctx, p.target, p.decode.stream, func(err error) {
				p.gone <- &prefillError{cause: "gone", reason: pd.PrefillFailed, err: err}
			})
		})
	}
}

// errGone is why a decode leg ended that waited for the KV cache of a prefill pod.
var errGone = errors.New("the prefill pod has ended, or answers no health check, and decode waits for its KV cache")

// source watches the prefill pod of a decode leg of a serial protocol.
type source struct {
	*vigil
	stop func() // ends the watch for the end of the pod
}

// watchSource begins to watch the prefill pod, from which decode gets the KV cache, and ends the decode leg if the pod hangs, or, if it
// sends the KV cache after its answer, if it ends. The caller must call over.
func (x *Exchange) watchSource(g *leg) source {
	w := source{x.legs.hung.watch(x.handoff.target, x.source, waitRead, 0, g.cancel), func() {}}
	if _, pushes := x.legs.Dialect.(dialect.Pusher); !pushes {
		return w
	}
	ctx, cancel := context.WithCancel(x.Context)
	ended, at, stream := make(chan struct{}), x.handoff.target, g.stream
	go func() {
		defer close(ended)
		x.legs.watchPush(ctx, at, stream, func(error) { g.cancel(errGone) })
	}()
	w.stop = func() { cancel(); <-ended }
	return w
}

// over ends both watches. read says that decode has the KV cache.
func (w source) over(read bool) {
	w.stop()
	w.vigil.over(read)
}
