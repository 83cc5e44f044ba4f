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
	// Budget bounds how many streams go on whose engines have failed: each has its prompt computed again.
	Budget *pd.FallbackBudget
	// Memory counts and bounds the token ids that are kept, in bytes.
	Memory *pd.BufferedBytes
	// Others finds decode pods that the picker has not named for the request.
	Others Others
}

// continued is a stream that may go on at another engine.
type continued interface {
	relay.Continuation
	// begins says how the leg of the local engine is ended when another one has gone on, and who watches that engine.
	begins(v *vigil, end func())
	// end ends the stream and the leg of the engine that went on with it.
	end()
}

// ongoing is a stream that goes on at another engine from its token ids.
type ongoing struct {
	*continuation.Stream
	mover
	tried bool // to leave the local engine
}

// mover has other engines go on with a stream.
type mover struct {
	x      *Exchange
	answer *relay.Answer // of the engine that goes on; nil: of none
	close  func()        // ends the leg to it
	leave  func()        // ends the leg of the local engine
	vigil  *vigil        // of the engine that sends the answer
	failed bool          // the end of the answer cannot be had
	before int           // how many engines had died or hung before the request came here

	leaving   bool // the move that is being tried is from an engine that is to end
	leaves    int  // how many such engines it has left, by all sidecars
	ownLeaves int  // how many of these by this one
}

// mover makes the mover of the stream.
func (x *Exchange) mover() mover {
	return mover{x: x, before: countIn(x.request.Header, pd.HeaderContinued) + x.Anew, leaves: countIn(x.request.Header, pd.HeaderLeft)}
}

// mayGoOn prepares a leg of the local engine whose stream may go on elsewhere, if the request allows that, and returns its body.
func (x *Exchange) mayGoOn(req *intake.Request, l request.Payload) request.Payload {
	x.endOngoing()
	_, able := x.legs.Dialect.(dialect.Continuer)
	if !able && !x.regenerates() || x.legs.Continue.Times == 0 || !req.Stream() {
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
	member, why := []byte(nil), continuation.OtherAPI
	if able {
		member, why = x.mayGoOnFromIDs(&b, payload)
	}
	if why != "" {
		why = x.mayRegenerate(&b, payload, why)
	}
	if why != "" && why != continuation.OtherAPI {
		x.legs.Metrics.Continued.WithLabelValues(causeNone, string(why)).Inc()
	}
	return withMember(l, member)
}

// mayGoOnFromIDs prepares a stream that may go on from its token ids. It returns what the leg needs for that in its body.
func (x *Exchange) mayGoOnFromIDs(b *body.Body, payload request.Payload) (member []byte, why continuation.Refusal) {
	of, why := continuation.Read(x.API, b, x.API == pd.APIChat && x.legs.parsers.may(x.Context, x.legs))
	if why != "" {
		return nil, why
	}
	o := &ongoing{Stream: continuation.NewStream(of, x.legs.Continue.Memory), mover: x.mover()}
	x.setOngoing(o)
	if o.MayParse() && continuation.Regenerable(x.API, b, true) == "" {
		again := x.again(payload)
		again.strips = o.Stream
		x.setOngoing(&undecided{o, again})
	}
	if c, ok := x.handoff.of.(dialect.UsageCorrector); ok {
		cached, _ := c.Cached()
		o.SetCached(cached)
	}
	return of.Member(), ""
}

func (x *Exchange) setOngoing(c continued) { x.ongoing, x.Elsewhere = c, c }

// endOngoing ends the stream that may go on elsewhere, if there is one.
func (x *Exchange) endOngoing() {
	if x.ongoing != nil {
		x.ongoing.end()
		x.ongoing, x.Elsewhere = nil, nil
	}
}

// beginsLeg notes who watches the engine of a new leg whose stream may go on elsewhere, and how the leg is ended when it has.
func (x *Exchange) beginsLeg(v *vigil, end func()) {
	if x.ongoing != nil {
		x.ongoing.begins(v, end)
	}
}

// maxLeaves is how many engines that are to end one stream may leave. In a rollout one pod after another ends, and a stream may leave for one
// that ends next: of 32 pods, one stream in a thousand meets more than five. Without a bound, two pods that are both to end would send a
// stream to and fro, each by way of all before it.
const maxLeaves = 8

// maxLeaving is how many streams ask other engines at once because the local one is to end, each of which computes a prompt for them. The local
// engine lives, so the others go on there until it is their turn. A budget that further requests fill up, as that of streams whose engines have
// failed, would keep most streams of a large engine: a pod that is to end gets no further requests.
const maxLeaving = 32

// countIn reads from a request how often other sidecars had its stream go on for one of the two reasons.
func countIn(h http.Header, header string) int {
	n, err := strconv.Atoi(h.Get(header))
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// deaths returns for how many engines that have died or hung a stream has gone on, of which this sidecar has moved it some times.
func (m *mover) deaths(moves int) int { return m.before + moves - m.ownLeaves }

// mayMove reports whether a stream may go on that this sidecar has moved some times. A prompt that kills engines is bounded by Times. That an
// engine is to end is not the prompt's fault, so it does not count for that.
func (m *mover) mayMove(moves int) bool {
	if m.leaving {
		return m.leaves < maxLeaves
	}
	return m.deaths(moves) < m.x.legs.Continue.Times
}

// withMember adds a member, with a comma, to the beginning of a body that is a JSON object with others.
func withMember(l request.Payload, member []byte) request.Payload {
	if member == nil {
		return l
	}
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

func (m *mover) begins(v *vigil, end func()) { m.vigil, m.leave = v, end }

func (o *ongoing) end() {
	o.endLeg()
	o.Stream.Close()
}

func (m *mover) endLeg() {
	if m.answer != nil {
		m.answer.Free()
		m.answer = nil
	}
	if m.close != nil {
		m.close()
		m.close = nil
	}
}

// The results of streams that break off, besides refusals; metric labels.
const (
	wentOn      = "ok"
	askedAnew   = "anew"   // another engine has begun to answer from the beginning
	tooOften    = "times"  // as often as --continue-times, or as maxLeaves
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
	if end := o.End(); end != nil {
		o.endLeg()
		o.answer = relay.NewAnswer(bytes.NewReader(end))
		return o.answer
	}
	switch {
	case o.failed:
		return nil
	case o.Stopped():
		o.x.answeringFailed()
		return o.complete()
	}
	return o.brokeOff(cause, o.tryOthers())
}

// tryOthers has another engine go on from the token ids, whose answer is then o.answer.
func (o *ongoing) tryOthers() (result string) {
	return o.mover.tryOthers(o.Refusal(), o.Moves(), o.send, o.Moved)
}

// brokeOff returns the answer with which a stream goes on that broke off because of cause; nil if none does, as the result says.
func (m *mover) brokeOff(cause error, result string) *relay.Answer {
	x := m.x
	if x.Context.Err() != nil {
		return nil
	}
	x.legs.localEngine.doubt()
	x.legs.Metrics.Continued.WithLabelValues(causeOf(cause), result).Inc()
	x.legs.warnings.Warn("stream broke off", "request_id", x.ID, "cause", cause, "continued", result)
	if result != wentOn {
		return nil
	}
	return m.answer
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
	o.vigil.moves(o.Refusal() == "" && o.mayMove(o.Moves()))
	if !x.legs.evacuating.Load() || o.tried || x.Anew > 0 || o.Moves() > 0 || o.Several() || o.Refusal() != "" || o.Ended() {
		return nil
	}
	select {
	case x.legs.leaving <- struct{}{}:
		defer func() { <-x.legs.leaving }()
	default:
		return nil // it tries again after its next event
	}
	o.tried, o.leaving = true, true
	result := o.tryOthers()
	o.leaving = false
	x.legs.Metrics.Continued.WithLabelValues(causeLeft, result).Inc()
	if result != wentOn {
		x.legs.warnings.Warn("stream stays at an engine that is to end", "request_id", x.ID, "result", result)
		x.failed = nil // should the local engine die before the stream ends, the others may have capacity by then
		return nil
	}
	o.leaves++
	o.ownLeaves++
	return o.answer
}

// complete has an engine say how an answer ends that a stop string has ended: what it has read of the text is not sent to it.
func (o *ongoing) complete() *relay.Answer {
	o.endLeg()
	for _, t := range o.x.others() {
		err := o.goOnAt(t, o.Moves(), o.send)
		if err == nil {
			o.Closes()
			return o.answer
		}
		o.x.legs.warnings.Warn("engine does not end a stream", "request_id", o.x.ID, "target", t.String(), "error", err)
	}
	return o.fails()
}

// fails ends the stream with an error.
func (m *mover) fails() *relay.Answer {
	m.endLeg()
	m.failed = true
	m.answer = relay.NewAnswer(http.NoBody) // the relay finds it at its end, and calls GoOn
	return m.answer
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

// sendLeg sends the leg with which an engine goes on, and returns its answer, which may come with an error.
type sendLeg func(ctx context.Context, engine transport.Engine, header http.Header) (*http.Response, error)

// tryOthers has another engine go on with a stream that has gone on some times, and may unless why says something else. Its answer is then
// m.answer; moved is called before it is read. The result is one of the labels above, or a refusal.
func (m *mover) tryOthers(why continuation.Refusal, moves int, send sendLeg, moved func()) (result string) {
	x := m.x
	if why != "" {
		return string(why)
	}
	if !m.mayMove(moves) {
		return tooOften
	}
	x.answeringFailed()
	targets := x.others()
	if len(targets) == 0 {
		return noEngine
	}
	if !m.leaving && !x.legs.Continue.Budget.Take() {
		return overBudget
	}
	m.endLeg()
	result = othersFail
	for _, t := range targets {
		err := m.goOnAt(t, moves, send)
		if err == nil {
			moved()
			x.moved.Store(true)
			if m.leave != nil {
				m.leave()
			}
			return wentOn
		}
		if x.Context.Err() != nil {
			break
		}
		if errors.Is(err, errNoParser) || errors.Is(err, continuation.ErrNoParser) {
			result = string(continuation.Parsed)
		}
		x.legs.warnings.Warn("engine does not go on with a stream", "request_id", x.ID, "target", t.String(), "error", err)
	}
	return result
}

// answeringFailed notes that the other engine that answered has failed, if one did. An engine that fails some requests may live on, and so
// is not in the list of those that are down.
func (x *Exchange) answeringFailed() {
	if x.answering != (pd.Target{}) {
		x.failed = append(x.failed, x.answering)
		x.answering = pd.Target{}
	}
}

// others returns the engines that may go on, in the order of the tries.
func (x *Exchange) others() []pd.Target {
	var all []pd.Target
	self := x.pod()
	add := func(list []pd.Target) {
		for _, t := range list {
			if t.String() != self && t != x.legs.localEngine.target && !slices.Contains(all, t) && !slices.Contains(x.failed, t) && !x.legs.down.has(t) && !x.legs.hung.has(t) {
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
	if x.legs.Continue.OnPrefill && !x.regenerates() {
		add(x.Route.Targets)
	}
	return all
}

// goOnAt has one engine go on.
func (m *mover) goOnAt(t pd.Target, moves int, send sendLeg) error {
	x := m.x
	engine := x.legs.Prefill(t)
	ctx, cancel := context.WithCancelCause(x.Context)
	header := x.legHeader()
	header["Accept-Encoding"] = transport.Identity
	header["Content-Type"] = jsonType
	deaths, leaves := m.deaths(moves), m.leaves
	if m.leaving {
		leaves++
	} else {
		deaths++
	}
	header.Set(pd.HeaderContinued, strconv.Itoa(deaths))
	if leaves > 0 {
		header.Set(pd.HeaderLeft, strconv.Itoa(leaves))
	}
	ctx, span := x.legs.tracing.leg(ctx, spanDecode, header, attribute.Bool("tandem.continues", true),
		attribute.String("server.address", t.Host), attribute.Int("server.port", int(t.Port)))
	sent, status := time.Now(), 0
	silence := time.AfterFunc(x.legs.FirstEvent, func() { cancel(errSilent) })
	v := x.legs.hung.watch(t, engine, waitFirst, 0, cancel)
	resp, err := send(ctx, engine, header)
	if resp != nil {
		status = resp.StatusCode
	}
	if err == nil {
		v.reads(resp)
		m.answer = relay.NewAnswer(resp.Body)
		err = m.answer.PeekEvent(nil, nil)
	}
	silence.Stop()
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	x.record.leg("continue", t.String(), sent, time.Now(), status, err)
	x.endLegSpan(span, status, err)
	m.vigil = v
	m.close = func() {
		v.over(false)
		cancel(nil)
		if resp != nil {
			resp.Body.Close()
		}
	}
	if err != nil {
		m.endLeg()
		x.failed = append(x.failed, t)
		return err
	}
	x.answering = t
	return nil
}

var jsonType = []string{"application/json"}

// send asks the engine for what the leg needs, and sends it.
func (o *ongoing) send(ctx context.Context, engine transport.Engine, header http.Header) (*http.Response, error) {
	length, err := o.prepare(ctx, engine, header)
	if err != nil {
		return nil, err
	}
	parsing := o.Parsing()
	parse := func(question []byte) ([]byte, error) { return o.parse(ctx, engine, header, question) }
	if parsing != nil && !o.x.legs.parsers.knows(engine.URL) {
		if _, err := parse(parsing.Check()); err != nil {
			return nil, fmt.Errorf("asking whether the engine parses tokens: %w", err)
		}
	}
	resp, err := o.sendTo(ctx, engine, pd.APICompletions.Path(), header, o.Leg(length))
	if err == nil && parsing != nil {
		resp.Body = newParsedBody(resp.Body, parsing, parse)
	}
	return resp, err
}

// sendTo sends a leg, whose answer must be a stream.
func (m *mover) sendTo(ctx context.Context, engine transport.Engine, path string, header http.Header, l request.Payload) (*http.Response, error) {
	req, err := transport.NewBufferedLeg(ctx, engine.URL+path, header, l.Segments, l.Length)
	if err != nil {
		return nil, fmt.Errorf("making the leg: %w", err)
	}
	resp, err := engine.Transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	m.x.rename(resp)
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
const maxAsked = 8 << 20

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
		err = &statusError{resp.StatusCode, path}
	}
	return answer, err
}

// statusError says that an engine did not answer 200.
type statusError struct {
	status int
	path   string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("the engine answers %d %s to %s", e.status, http.StatusText(e.status), e.path)
}
