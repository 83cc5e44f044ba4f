package handoff

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
	"github.com/tandem-serving/tandem/sidecar/lease"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// The ways in which a hand-off is released; metric labels.
const (
	wayNIXL   = "nixl"   // the sidecar notifies the prefill engine
	wayCancel = "cancel" // the decode engine gets a leg that is then cancelled, and notifies the prefill engine
	wayAbort  = "abort"  // the sidecar asks both engines to abort the legs
	wayNone   = "none"   // decode read it, or no engine could be notified
)

// releasing is a hand-off that is being released, with the headers of its request, because engines check credentials.
type releasing struct {
	id     string
	of     dialect.Handoff
	hold   *lease.Hold
	header http.Header
	span   trace.Span // of the release
	record *Record    // of the request; nil: none is kept
}

// release begins the release of the hand-off, by the way that will be tried first.
func (x *Exchange) release(way string) releasing {
	return x.beginRelease(x.handoff.of, x.handoff.hold, way)
}

func (x *Exchange) beginRelease(of dialect.Handoff, hold *lease.Hold, way string) releasing {
	x.releaseWay = way
	_, span := x.legs.tracing.tracer.Start(x.Context, spanRelease, clientSpan)
	return releasing{x.ID, of, hold, x.legHeader(), span, x.record}
}

// firstWay is wayNIXL for a hand-off whose engine can be notified, else wayCancel.
func firstWay(hold *lease.Hold) string {
	if hold.Ready() {
		return wayNIXL
	}
	return wayCancel
}

// pinned reports whether an engine keeps anything for a hand-off that decode does not read.
func pinned(of dialect.Handoff) bool {
	_, byCancel := of.(dialect.Releaser)
	_, byRequest := of.(dialect.RequestReleaser)
	return byCancel || byRequest
}

// releaseUnsent releases a hand-off that decode does not know of: by a notice, or by sending a decode leg and cancelling
// it. It returns at once; the release goes on after the request.
func (x *Exchange) releaseUnsent() {
	if !pinned(x.handoff.of) {
		return
	}
	r, ctx, uri := x.release(firstWay(x.handoff.hold)), context.WithoutCancel(x.Context), x.request.URL.RequestURI()
	releaser, discards := r.of.(dialect.Releaser)
	var l request.Payload
	var err error
	if discards {
		l, err = releaser.Discard() // now: the request's body may be dropped when the exchange ends
	}
	x.legs.background(func() {
		if x.legs.notify(r) {
			return
		}
		if !discards {
			x.legs.releaseUnread(r)
			return
		}
		if err != nil {
			x.legs.released(r, false, fmt.Errorf("editing the release: %w", err))
			return
		}
		g, err := x.legs.startLeg(ctx, r.of, uri, r.header.Clone(), l)
		if err != nil {
			x.legs.released(r, false, err)
			return
		}
		g.stream = true
		x.legs.cancelLeg(g, r)
	})
}

// releaseLeg releases the hand-off of a decode leg that is under way, and ends the leg.
func (x *Exchange) releaseLeg(g *leg) {
	if !pinned(x.handoff.of) {
		g.drop()
		return
	}
	r := x.release(wayCancel)
	x.legs.background(func() { x.legs.cancelLeg(g, r) })
}

// cancelLeg cancels a leg and makes sure that its hand-off is released, also when the engine refused or lost the leg, or does
// not release what it loses.
func (legs *Legs) cancelLeg(g *leg, r releasing) {
	releaser, ok := r.of.(dialect.Releaser)
	switch status, delivered := g.cancelDelivered(); {
	case !delivered, !ok:
		legs.releaseInDoubt(r)
	case releaser.Pins(status):
		legs.releaseUnread(r)
	default:
		legs.released(r, true, nil)
	}
}

// releaseUnread releases a hand-off that decode does not read, because decode was not asked to, refused, or failed.
func (x *Exchange) releaseUnread() { x.releaseOf(x.handoff.of, x.handoff.hold) }

func (x *Exchange) releaseOf(of dialect.Handoff, hold *lease.Hold) {
	if !pinned(of) {
		return
	}
	r := x.beginRelease(of, hold, firstWay(hold))
	x.legs.background(func() { x.legs.releaseUnread(r) })
}

// releaseInDoubt releases a hand-off that decode may still be reading.
func (x *Exchange) releaseInDoubt() {
	if !pinned(x.handoff.of) {
		return
	}
	r := x.release(wayCancel)
	x.legs.background(func() { x.legs.releaseInDoubt(r) })
}

// releaseUnread releases a hand-off that decode does not read.
func (legs *Legs) releaseUnread(r releasing) {
	if legs.notify(r) {
		return
	}
	ok, err := legs.releaseByDecode(r)
	legs.released(r, ok, err)
}

// releaseInDoubt releases a hand-off that decode may be reading: only decode may notify prefill of it, unless decode has ended.
func (legs *Legs) releaseInDoubt(r releasing) {
	if _, once := r.of.(dialect.OnceReleaser); once {
		legs.unsure(r)
		return
	}
	ok, err := legs.releaseByDecode(r)
	if !ok && errors.Is(err, syscall.ECONNREFUSED) && legs.notify(r) {
		return
	}
	legs.released(r, ok, err)
}

// errMaybeRead is why a hand-off is not released.
var errMaybeRead = errors.New("decode may have read the hand-off, and to read it again would keep blocks of decode")

// unsure notes a hand-off that decode may have read, and that cannot be released without reading it. Otherwise the prefill engine keeps
// it until its time-out.
func (legs *Legs) unsure(r releasing) {
	legs.warnings.Warn("hand-off left to the prefill engine's time-out, unless decode has read it", "request_id", r.id)
	legs.Metrics.Releases.WithLabelValues(wayCancel, "unsure").Inc()
	r.record.release(wayCancel, "unsure", errMaybeRead)
	endRelease(r.span, wayCancel, errMaybeRead)
}

// notify notifies the prefill engine that it can free the blocks. If it returns false, another way has to be tried.
func (legs *Legs) notify(r releasing) bool {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	err := r.hold.Release(ctx)
	switch {
	case err == nil:
		legs.Metrics.Releases.WithLabelValues(wayNIXL, "ok").Inc()
		r.record.release(wayNIXL, "ok", nil)
		endRelease(r.span, wayNIXL, nil)
	case errors.Is(err, lease.ErrNoWay), errors.Is(err, lease.ErrReleased): // ErrReleased: a notice was tried before
	default:
		// Notifying an engine twice costs a line in its log; not notifying it, its blocks until the lease ends.
		legs.Metrics.Releases.WithLabelValues(wayNIXL, "unsure").Inc()
		r.record.release(wayNIXL, "unsure", err)
		legs.warnings.Warn("the prefill engine may have been notified of a release, and is notified again by way of decode", "request_id", r.id, "error", err)
	}
	return err == nil
}

// errNoDecodeRelease is the error of releaseByDecode for a protocol that has no such request.
var errNoDecodeRelease = errors.New("the protocol has no request that makes decode release a hand-off")

// releaseByDecode makes the decode engine release the hand-off without reading it.
func (legs *Legs) releaseByDecode(r releasing) (ok bool, err error) {
	return legs.releaseBy(r, legs.Decode)
}

// releaseBy makes an engine that was to read a hand-off release it without reading it. It tries until decode has answered, its
// port is closed, or it does not answer in time.
func (legs *Legs) releaseBy(r releasing, reader transport.Engine) (ok bool, err error) {
	f, can := r.of.(dialect.RequestReleaser)
	if !can {
		return false, errNoDecodeRelease
	}
	tries, pause := f.Tries()
	for try := range tries {
		if try > 0 {
			time.Sleep(pause << (try - 1))
		}
		ok, err = sendRelease(r, f, reader)
		if err == nil || errors.Is(err, syscall.ECONNREFUSED) || isTimeout(err) {
			break
		}
	}
	return ok, err
}

func sendRelease(r releasing, f dialect.RequestReleaser, reader transport.Engine) (ok bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	path, b := f.ReleaseRequest()
	r.header["Content-Type"] = []string{"application/json"}
	req, err := transport.NewBufferedLeg(ctx, reader.URL+path, r.header, [][]byte{b}, int64(len(b)))
	if err != nil {
		return false, err
	}
	resp, err := reader.Transport.RoundTrip(req)
	if err != nil {
		return false, err
	}
	resp.Body.Close()
	return f.Released(resp.StatusCode), nil
}

func isClientError(status int) bool { return status >= 400 && status < 500 }

// released counts a release by way of decode. A failed one leaves blocks pinned until the lease expires.
func (legs *Legs) released(r releasing, ok bool, err error) {
	result := "ok"
	if !ok {
		result = "failed"
		legs.Metrics.Stranded.Inc()
		legs.warnings.Warn("hand-off not released: the prefill engine keeps its blocks until the lease expires", "request_id", r.id, "error", err)
		err = cmp.Or(err, errUnreleased)
	}
	legs.Metrics.Releases.WithLabelValues(wayCancel, result).Inc()
	r.record.release(wayCancel, result, err)
	endRelease(r.span, wayCancel, err)
}

// errUnreleased says that a decode engine did not answer a release as its protocol demands.
var errUnreleased = errors.New("decode did not release the hand-off")
