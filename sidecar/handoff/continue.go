package handoff

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/dialect"
	"github.com/tandem-serving/tandem/pd/request"
	"github.com/tandem-serving/tandem/sidecar/continuation"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/relay"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// Continue says whether, where and how often a stream whose engine has died goes on at another engine.
type Continue struct {
	// Times is how often one stream may go on; 0: none does.
	Times int
	// OnPrefill has the prefill candidates of a request go on with it if no decode pod can.
	OnPrefill bool
	// Budget bounds how many streams go on: each has its prompt computed again.
	Budget *pd.FallbackBudget
	// Memory counts and bounds the token ids that are kept, in bytes.
	Memory *pd.BufferedBytes
	// Others finds decode pods that the picker has not named for the request.
	Others Others
}

// ongoing is a stream that may go on at another engine. It implements relay.Continuation.
type ongoing struct {
	*continuation.Stream
	x      *Exchange
	answer *relay.Answer // of the engine that goes on; nil: of none
	close  func()        // ends the leg to it
	leave  func()        // ends the leg of the local engine
	vigil  *vigil        // of the engine that sends the answer
	tried  bool          // to leave it
	failed bool          // the end of the answer cannot be had
	before int           // how often other sidecars had it go on before the request came here
}

// mayGoOn prepares a leg of the local engine whose stream may go on elsewhere, if the request allows that, and returns its body.
func (x *Exchange) mayGoOn(req *intake.Request, l request.Payload) request.Payload {
	x.ongoing.end()
	x.ongoing, x.Elsewhere = nil, nil
	_, able := x.legs.Dialect.(dialect.Continuer)
	if !able || x.legs.Continue.Times == 0 || !req.Stream() {
		return l
	}
	if x.unreferenced != nil { // another engine may not find what a reference names
		req = x.unreferenced
	}
	payload, err := req.Local()
	if err != nil {
		return l
	}
	var b body.Body
	for _, segment := range payload.Segments {
		b.Append(segment)
	}
	of, why := continuation.Read(x.API, &b)
	if why == continuation.OtherAPI {
		return l
	}
	if why != "" {
		x.legs.Metrics.Continued.WithLabelValues(causeNone, string(why)).Inc()
		return l
	}
	x.ongoing = &ongoing{Stream: continuation.NewStream(of, x.legs.Continue.Memory), x: x, before: movedBefore(x.request.Header) + x.Anew}
	x.Elsewhere = x.ongoing
	if c, ok := x.handoff.of.(dialect.UsageCorrector); ok {
		cached, _ := c.Cached()
		x.ongoing.SetCached(cached)
	}
	return withMember(l, of.Member())
}

// movedBefore reads from a request how often other sidecars had its stream go on. Without that, two pods that are both to end would
// send a stream to and fro, each by way of all before it.
func movedBefore(h http.Header) int {
	n, err := strconv.Atoi(h.Get(pd.HeaderContinued))
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// mayMove reports whether the stream may go on once more.
func (o *ongoing) mayMove() bool { return o.before+o.Moves() < o.x.legs.Continue.Times }

// withMember adds a member, with a comma, to the beginning of a body that is a JSON object with others.
func withMember(l request.Payload, member []byte) request.Payload {
	for i, segment := range l.Segments {
		at := bytes.IndexByte(segment, '{') + 1 // only white space and a byte order mark may be before it
		if at == 0 {
			continue
		}
		segments := append(make([][]byte, 0, len(l.Segments)+2), l.Segments[:i]...)
		for _, part := range [][]byte{segment[:at], member, segment[at:]} {
			if len(part) > 0 {
				segments = append(segments, part)
			}
		}
		return request.Payload{Segments: append(segments, l.Segments[i+1:]...), Length: l.Length + int64(len(member))}
	}
	return l
}

// Evacuate has the streams of all ranks' exchanges go on elsewhere that can, those that run and those that come.
func (legs *Legs) Evacuate() { legs.evacuating.Store(true) }

// Moved reports whether another engine has gone on with the answer, so that the local one is not needed for it. It may be called from
// any goroutine.
func (x *Exchange) Moved() bool { return x.moved.Load() }

// begins says how the leg of the local engine is ended when another one has gone on, and who watches that engine.
func (o *ongoing) begins(v *vigil, end func()) {
	if o != nil {
		o.vigil, o.leave = v, end
	}
}

// end ends the stream and the leg of the engine that went on with it.
func (o *ongoing) end() {
	if o == nil {
		return
	}
	o.endLeg()
	o.Stream.Close()
}

func (o *ongoing) endLeg() {
	if o.answer != nil {
		o.answer.Free()
		o.answer = nil
	}
	if o.close != nil {
		o.close()
		o.close = nil
	}
}

// The results of streams that break off, besides refusals; metric labels.
const (
	wentOn      = "ok"
	askedAnew   = "anew"   // another engine has begun to answer from the beginning
	tooOften    = "times"  // as often as --continue-times
	overBudget  = "budget" // --continue-burst is spent
	noEngine    = "no-engine"
	othersFail  = "failed"
	causeNone   = "none"   // the engine lives: the request is not one that could go on
	causeBroken = "broken" // the connection broke, or the stream ended early
	causeError  = "error"  // the engine sent an error event
	causeLeft   = "left"   // the engine lives, and is to end
)

// GoOn implements relay.Continuation. It tries the other decode pods that the picker has named, then others, then the prefill candidates.
func (o *ongoing) GoOn(cause error) *relay.Answer {
	x := o.x
	if end := o.End(); end != nil {
		o.endLeg()
		o.answer = relay.NewAnswer(bytes.NewReader(end))
		return o.answer
	}
	switch {
	case o.failed:
		return nil
	case o.Stopped():
		return o.complete()
	}
	result := o.tryOthers()
	if x.Context.Err() != nil {
		return nil
	}
	x.legs.localEngine.doubt()
	x.legs.Metrics.Continued.WithLabelValues(causeOf(cause), result).Inc()
	x.legs.warnings.Warn("stream broke off", "request_id", x.ID, "cause", cause, "continued", result)
	if result != wentOn {
		return nil
	}
	return o.answer
}

// Leave implements relay.Continuation. A stream that cannot go on elsewhere stays. The ids of an event with several of them may end
// within a character: the stream then leaves after the next event.
func (o *ongoing) Leave() *relay.Answer {
	x := o.x
	switch {
	case o.Broken() != nil:
		x.legs.warnings.Warn("stream does not go on", "request_id", x.ID, "error", o.Broken())
		return o.fails()
	case o.Stopped():
		return o.complete()
	}
	o.vigil.moves(o.Refusal() == "" && o.mayMove())
	if !x.legs.evacuating.Load() || o.tried || x.Anew > 0 || o.Moves() > 0 || o.Several() || o.Refusal() != "" || o.Ended() {
		return nil
	}
	o.tried = true
	result := o.tryOthers()
	x.legs.Metrics.Continued.WithLabelValues(causeLeft, result).Inc()
	if result != wentOn {
		x.legs.warnings.Warn("stream stays at an engine that is to end", "request_id", x.ID, "result", result)
		return nil
	}
	return o.answer
}

// complete has an engine say how an answer ends that a stop string has ended: what it has read of the text is not sent to it.
func (o *ongoing) complete() *relay.Answer {
	o.endLeg()
	for _, t := range o.x.others() {
		err := o.goOnAt(t)
		if err == nil {
			o.Closes()
			return o.answer
		}
		o.x.legs.warnings.Warn("engine does not end a stream", "request_id", o.x.ID, "target", t.String(), "error", err)
	}
	return o.fails()
}

// fails ends the stream with an error.
func (o *ongoing) fails() *relay.Answer {
	o.endLeg()
	o.failed = true
	o.answer = relay.NewAnswer(http.NoBody) // the relay reads its end, and calls GoOn
	return o.answer
}

// causeOf names why a stream broke off.
func causeOf(err error) string {
	switch {
	case errors.Is(err, errHung):
		return causeHung
	case errors.Is(err, relay.ErrEngineFailed), errors.Is(err, relay.ErrBeganFailing), errors.Is(err, errDied):
		return causeError
	}
	return causeBroken
}

// tryOthers has another engine go on, whose answer is then o.answer. The result is one of the labels above, or a refusal.
func (o *ongoing) tryOthers() string {
	x := o.x
	if why := o.Refusal(); why != "" {
		return string(why)
	}
	if !o.mayMove() {
		return tooOften
	}
	targets := x.others()
	if len(targets) == 0 {
		return noEngine
	}
	if !x.legs.Continue.Budget.Take() {
		return overBudget
	}
	o.endLeg()
	for _, t := range targets {
		err := o.goOnAt(t)
		if err == nil {
			o.Moved()
			x.moved.Store(true)
			if o.leave != nil {
				o.leave()
			}
			return wentOn
		}
		if x.Context.Err() != nil {
			break
		}
		x.legs.warnings.Warn("engine does not go on with a stream", "request_id", x.ID, "target", t.String(), "error", err)
	}
	return othersFail
}

// others returns the engines that may go on, in the order of the tries.
func (x *Exchange) others() []pd.Target {
	var all []pd.Target
	self := x.pod()
	add := func(list []pd.Target) {
		for _, t := range list {
			if t.String() != self && t != x.legs.localEngine.target && !slices.Contains(all, t) && !x.legs.down.has(t) && !x.legs.hung.has(t) {
				all = append(all, t)
			}
		}
	}
	add(x.Route.Others)
	found, err := x.legs.others.list(x.Context, self)
	if err != nil {
		x.legs.warnings.Warn("cannot find decode pods that go on with streams", "error", err)
	}
	known := len(all)
	add(found)
	all = all[:min(len(all), known+maxFound)]
	if x.legs.Continue.OnPrefill {
		add(x.Route.Targets)
	}
	return all
}

// goOnAt has one engine go on.
func (o *ongoing) goOnAt(t pd.Target) error {
	x := o.x
	engine := x.legs.Prefill(t)
	ctx, cancel := context.WithCancelCause(x.Context)
	header := x.legHeader()
	header["Accept-Encoding"] = transport.Identity
	header["Content-Type"] = jsonType
	header.Set(pd.HeaderContinued, strconv.Itoa(o.before+o.Moves()+1))
	ctx, span := x.legs.tracing.leg(ctx, spanDecode, header, attribute.Bool("tandem.continues", true),
		attribute.String("server.address", t.Host), attribute.Int("server.port", int(t.Port)))
	sent, status := time.Now(), 0
	silence := time.AfterFunc(x.legs.FirstEvent, func() { cancel(errSilent) })
	v := x.legs.hung.watch(t, engine, waitFirst, 0, cancel)
	resp, err := o.send(ctx, engine, header)
	if resp != nil {
		status = resp.StatusCode
	}
	if err == nil {
		v.reads(resp)
		o.answer = relay.NewAnswer(resp.Body)
		err = o.answer.PeekEvent(nil, nil)
	}
	silence.Stop()
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	x.record.leg("continue", t.String(), sent, time.Now(), status, err)
	x.endLegSpan(span, status, err)
	o.vigil = v
	o.close = func() {
		v.over(false)
		cancel(nil)
		if resp != nil {
			resp.Body.Close()
		}
	}
	if err != nil {
		o.endLeg()
	}
	return err
}

var jsonType = []string{"application/json"}

// send sends the leg, and returns its answer, which may come with an error.
func (o *ongoing) send(ctx context.Context, engine transport.Engine, header http.Header) (*http.Response, error) {
	x := o.x
	length, err := o.prepare(ctx, engine, header)
	if err != nil {
		return nil, err
	}
	l := o.Leg(length)
	req, err := transport.NewBufferedLeg(ctx, engine.URL+pd.APICompletions.Path(), header, l.Segments, l.Length)
	if err != nil {
		return nil, fmt.Errorf("making the leg: %w", err)
	}
	resp, err := engine.Transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	x.rename(resp)
	switch {
	case resp.StatusCode != http.StatusOK:
		return resp, fmt.Errorf("the engine answers %s", resp.Status)
	case !relay.IsEventStream(resp.Header) || relay.Encoded(resp.Header):
		return resp, errors.New("the engine does not answer with a stream")
	}
	return resp, nil
}

// prepare asks the engine what the leg needs: the model's length in tokens, 0 if it is not needed, and the text of the last ids that were
// sent, if that is not known.
func (o *ongoing) prepare(ctx context.Context, engine transport.Engine, header http.Header) (length int64, err error) {
	for question := o.Question(); question != nil; question = o.Question() {
		answer, err := ask(ctx, engine, http.MethodPost, "/detokenize", question, header)
		if err == nil {
			err = o.Answer(answer)
		}
		if err != nil {
			return 0, fmt.Errorf("asking for the text of the last tokens: %w", err)
		}
	}
	if !o.NeedsModelLength() {
		return 0, nil
	}
	models, err := ask(ctx, engine, http.MethodGet, "/v1/models", nil, header)
	if err != nil {
		return 0, fmt.Errorf("asking for the model's length: %w", err)
	}
	length, ok := continuation.ModelLength(models)
	if !ok {
		return 0, errors.New("the engine does not say the model's length (max_model_len)")
	}
	return length, nil
}

// maxAsked is the most bytes of an answer to a question.
const maxAsked = 1 << 20

// ask sends a request with the headers of a leg, and returns the answer.
func ask(ctx context.Context, engine transport.Engine, method, path string, question []byte, header http.Header) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, engine.URL+path, bytes.NewReader(question))
	if err != nil {
		return nil, err
	}
	req.Header = header.Clone()
	resp, err := engine.Transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAsked))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("the engine answers %s to %s", resp.Status, path)
	}
	return answer, err
}

var _ relay.Continuation = (*ongoing)(nil)
