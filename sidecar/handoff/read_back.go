package handoff

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/lease"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

const (
	// minReadBack is from how many tokens on a prefill engine is to read back: vLLM computes fewer than 64 rather than read them, and the
	// local engine computes up to a block of them for the hand-off.
	minReadBack = 128
	// lendTimeout is how long a request waits for the local engine to hand over what it has: it computes a token for that, in one of its
	// next steps.
	lendTimeout = time.Second
)

// The further results of a request whose route names the local engine; metric labels. See pull.go.
const (
	pullFailed = "failed" // the local engine gives no hand-off of what it has
	pullUnread = "unread" // the prefill engine has computed what it was to read
)

// lent is what the local engine has of a prompt, for a prefill engine to read.
type lent struct {
	of   dialect.Handoff
	hold *lease.Hold
}

// machineClock returns the time of this machine's monotonic clock, by which engines know when blocks expire. ok is false where there is none.
type machineClock func() (now time.Duration, ok bool)

// borrow has the local engine hand over what it has of a prompt, if the picker says that it has much, for the prefill engine of an attempt
// at a candidate. It returns nil if that is to compute all.
func (x *Exchange) borrow(a dialect.Attempt, req *intake.Request, at pd.Target) *lent {
	source := x.Route.Source
	d, able := x.legs.Dialect.(dialect.BackReader)
	if source == (pd.Target{}) || !able || !d.ReadsBack() {
		return nil
	}
	l, result := x.tryBorrow(a.(dialect.BackAttempt), req, at)
	x.legs.Metrics.Pulls.WithLabelValues(result).Inc()
	return l
}

func (x *Exchange) tryBorrow(a dialect.BackAttempt, req *intake.Request, at pd.Target) (l *lent, result string) {
	source, rank := x.Route.Source, x.legs.Pulls.Rank(x.Route.Source.Port)
	local := source != at && source.Host == x.legs.Pulls.Self && rank == x.legs.rank
	if !local || x.Plan == nil || x.Plan.SourceTokens < minReadBack || req.AsIs || x.lendless || x.legs.unable.has(at) {
		return nil, pullNone
	}
	began, ok := x.legs.monotonic()
	if !ok {
		return nil, pullNone
	}
	leg, ok, err := a.Lend(x.Plan.SourceTokens)
	switch {
	case err == nil && !ok:
		return nil, pullNone
	case err == nil:
		var answer []byte
		if answer, err = x.sendLend(a, leg); err == nil {
			var of dialect.Handoff
			if of, err = a.Borrow(answer, began+x.legs.Pulls.Lease); err == nil {
				return &lent{of, x.legs.hold(of, time.Now())}, pullAsked
			}
		}
	}
	x.lendless = true
	x.legs.warnings.Warn("the local engine hands nothing over for prefill to read back", "request_id", x.ID, "error", err)
	return nil, pullFailed
}

// sendLend sends the leg that has the local engine hand over, and returns its answer.
func (x *Exchange) sendLend(a dialect.Attempt, l request.Payload) ([]byte, error) {
	header := x.legHeader()
	header["Accept-Encoding"] = transport.Identity
	setHeaders(a, pd.RoleDecode, header)
	ctx, cancel := context.WithTimeout(x.Context, lendTimeout)
	defer cancel()
	ctx, span := x.legs.tracing.leg(ctx, spanLend, header, attribute.String("server.address", x.legs.Host), attribute.Int("server.port", x.legs.Port))
	sent := time.Now()
	status, answer, err := x.legs.askLend(ctx, x.request.URL.RequestURI(), header, l)
	x.legs.Metrics.leg("lend", status, time.Since(sent))
	x.record.leg("lend", x.legs.localEngine.address, sent, time.Now(), status, err)
	x.endLegSpan(span, status, err)
	return answer, err
}

func (legs *Legs) askLend(ctx context.Context, uri string, header http.Header, l request.Payload) (status int, answer []byte, err error) {
	req, err := transport.NewBufferedLeg(ctx, legs.Decode.URL+uri, header, l.Segments, l.Length)
	if err != nil {
		return 0, nil, fmt.Errorf("making the leg: %w", err)
	}
	resp, err := legs.Decode.Transport.RoundTrip(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = transport.ReadCapped(resp, maxPrefillAnswer)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("it answered %s", resp.Status)
	}
	return resp.StatusCode, answer, err
}

// errUnread is why a prefill engine gets nothing to read for a while.
var errUnread = errors.New("it computed what it was to read: is bidirectional_kv_xfer in its kv_connector_extra_config?")

// returned notes the end of a prefill leg that was to read what the local engine has lent, and releases that if it was certainly not read.
// Otherwise the local engine has freed it, or does so when its lease ends.
func (x *Exchange) returned(g *prefillLeg) {
	if x.legs.unread(g, x.ID) {
		r := x.beginRelease(g.lent.of, g.lent.hold, firstWay(g.lent.hold))
		x.legs.background(func() { x.legs.releaseLent(r, g.engine) })
	}
}

// unread reports whether a prefill leg that has ended has certainly not read what the local engine has lent to it for a request.
func (legs *Legs) unread(g *prefillLeg, id string) bool {
	if g.lent == nil {
		return false
	}
	defer g.lent.hold.End()
	if g.err != nil { // another failure than a refusal may come while it reads, or later
		return isClientError(g.status) || g.status == http.StatusServiceUnavailable
	}
	b, ok := g.of.(dialect.Borrowed)
	if !ok {
		return false
	}
	if used, known := b.ReadBack(); used || !known {
		return false
	}
	legs.unable.add(g.target)
	legs.Metrics.Pulls.WithLabelValues(pullUnread).Inc()
	legs.warnings.Warn("prefill reads nothing back", "request_id", id, "prefill", g.name, "error", errUnread)
	return true
}

// releaseLent releases what the local engine has lent to a prefill engine.
func (legs *Legs) releaseLent(r releasing, prefill transport.Engine) {
	if legs.notify(r) {
		return
	}
	ok, err := legs.releaseBy(r, prefill)
	legs.released(r, ok, err)
}

// unableFor is for how long a prefill engine that does not read back gets nothing to read: it may be started anew with another
// configuration.
const unableFor = 5 * time.Minute

// unableList knows the prefill engines that do not read back. It is safe for concurrent use.
type unableList struct {
	now func() time.Time

	mu    sync.Mutex // guards until
	until map[pd.Target]time.Time
}

func newUnableList(now func() time.Time) *unableList {
	return &unableList{now: now, until: map[pd.Target]time.Time{}}
}

func (l *unableList) has(t pd.Target) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now().Before(l.until[t])
}

func (l *unableList) add(t pd.Target) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.until) >= maxTiers {
		clear(l.until)
	}
	l.until[t] = l.now().Add(unableFor)
}
