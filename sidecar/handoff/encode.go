package handoff

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/encode"
	"github.com/tandem-serving/tandem/pd/request"
	"github.com/tandem-serving/tandem/sidecar/intake"
	"github.com/tandem-serving/tandem/sidecar/transport"
)

// Encoding configures encoder legs.
type Encoding struct {
	// Connector is how encodings reach the engines that compute prompts; nil: nothing is encoded on other pods.
	Connector *encode.Connector
	// References replaces images by references to their encodings.
	References bool
	// Timeout bounds the encoder legs of a request, all tries together.
	Timeout time.Duration
}

// The results of the encode stage; metric labels.
const (
	encodeDone     = "encoded"  // all items were encoded on other pods
	encodeFallback = "fallback" // what computes the prompt encodes, because an encoder failed
	encodeNone     = "no-media" // the request has nothing to encode, or not in a form that encoders take
)

// withEncodings has the encoders of the route encode the images, audio and video of a request, and returns the request that the engines
// get. If one item is not encoded, that is the request as the client sent it, and the engine that computes the prompt encodes. An
// error is final.
func (x *Exchange) withEncodings(req *intake.Request) (*intake.Request, error) {
	if len(x.Route.Encoders) == 0 || req.AsIs {
		return req, nil
	}
	media, err := encode.MediaOf(req.Request)
	if media == nil {
		if err != nil {
			x.legs.warnings.Warn("request not encoded on another pod", "request_id", x.ID, "error", err)
		}
		x.legs.Metrics.Encodes.WithLabelValues(encodeNone).Inc()
		return req, nil
	}
	x.state = encoding
	x.Clock.Enter(pd.PhaseEncode, time.Now())
	got, err := x.runEncoders(media)
	if x.Context.Err() != nil {
		return nil, x.contextError()
	}
	if err == nil {
		var made *request.Request
		var referenced bool
		if made, referenced, err = got.Request(x.legs.Encoding.Connector, x.legs.Encoding.References); err == nil {
			x.legs.Metrics.Encodes.WithLabelValues(encodeDone).Inc()
			if referenced {
				x.unreferenced = req
			}
			return x.replaced(req, made), nil
		}
	}
	x.Unencoded = true
	x.legs.Metrics.Encodes.WithLabelValues(encodeFallback).Inc()
	x.legs.warnings.Warn("no encoder has encoded the request", "request_id", x.ID, "error", err)
	return req, nil
}

// replaced returns what the legs get of a request that was changed. The client's own stays, for legs without the changes.
func (x *Exchange) replaced(req *intake.Request, made *request.Request) *intake.Request {
	if made == req.Request {
		return req
	}
	x.Buffer.Derive(made.Body)
	return &intake.Request{Request: made, Fit: req.Fit}
}

// runEncoders has each encoder encode a share of the items.
func (x *Exchange) runEncoders(media *encode.Media) (*encode.Encodings, error) {
	ctx, cancel := context.WithTimeout(x.Context, x.legs.Encoding.Timeout)
	defer cancel()
	encoders := x.Route.Encoders
	shares := make([]*share, min(len(encoders), media.Len()))
	var running sync.WaitGroup
	for i := range shares {
		s := &share{x: x, media: media, targets: slices.Concat(encoders[i:], encoders[:i])}
		for item := i; item < media.Len(); item += len(shares) {
			s.items = append(s.items, item)
		}
		shares[i] = s
		running.Go(func() {
			if s.run(ctx); s.err != nil {
				cancel() // the others are not needed: engines get the encodings of all items, or of none
			}
		})
	}
	running.Wait()
	got := media.NewEncodings()
	var errs []error
	for _, s := range shares {
		for _, t := range s.tries {
			x.record.leg(spanEncode, t.target.String(), t.sent, t.ended, t.status, t.err)
		}
		err := s.err
		if err == nil {
			err = got.Add(s.items, s.answer)
		}
		errs = append(errs, err)
	}
	return got, errors.Join(errs...)
}

// share is the part of the items that one encoder gets, or, if that fails, the next one.
type share struct {
	x       *Exchange
	media   *encode.Media
	items   []int
	targets []pd.Target // in the order of the tries
	tries   []encoderTry
	answer  []byte
	err     error
}

// encoderTry is one leg to one encoder.
type encoderTry struct {
	target      pd.Target
	sent, ended time.Time
	status      int
	err         error
}

// encoderError says why an encoder leg failed.
type encoderError struct {
	cause string // metric label
	final bool   // every other encoder would fail likewise
	err   error
}

func (e *encoderError) Error() string { return fmt.Sprintf("%s: %v", e.cause, e.err) }
func (e *encoderError) Unwrap() error { return e.err }

// errNoEncoder is the error of a share for which no encoder was tried.
var errNoEncoder = &encoderError{cause: "down", err: errors.New("every encoder is down, or hangs")}

// run tries the encoders. It leaves the answer, or an error.
func (s *share) run(ctx context.Context) {
	legs := s.x.legs
	s.err = errNoEncoder
	for _, target := range s.targets {
		if legs.down.skip(target) || legs.hung.has(target) {
			continue
		}
		try := encoderTry{target: target, sent: time.Now()}
		var failed *encoderError
		s.answer, try.status, failed = s.send(ctx, target, len(s.tries)+1)
		try.ended = time.Now()
		if failed == nil {
			s.tries, s.err = append(s.tries, try), nil
			legs.down.tried(target, nil)
			return
		}
		try.err, s.err = failed, failed
		s.tries = append(s.tries, try)
		if errors.Is(ctx.Err(), context.Canceled) { // the client has left, or another share has failed
			return
		}
		legs.down.tried(target, failed)
		legs.Metrics.Retries.WithLabelValues(spanEncode, failed.cause).Inc()
		legs.warnings.Warn("encoder leg failed", "request_id", s.x.ID, "target", target.String(), "cause", failed.cause, "error", failed.err)
		if failed.final || ctx.Err() != nil {
			return
		}
	}
}

// send sends one leg, and returns a checked answer.
func (s *share) send(ctx context.Context, target pd.Target, attempt int) (answer []byte, status int, failed *encoderError) {
	legs := s.x.legs
	header := s.x.legHeader()
	header["Accept-Encoding"] = transport.Identity
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	ctx, span := legs.tracing.leg(ctx, spanEncode, header, attribute.Int("tandem.attempt", attempt), attribute.Int("tandem.encode.items", len(s.items)),
		attribute.String("server.address", target.Host), attribute.Int("server.port", int(target.Port)))
	sent := time.Now()
	inflight := legs.Metrics.Inflight.WithLabelValues(spanEncode)
	inflight.Inc()
	engine, leg := legs.Prefill(target), s.media.Leg(s.items)
	v := legs.hung.watch(target, engine, waitPrefill, leg.Length, end)
	answer, status, err := legs.sendEncoderLeg(ctx, engine, header, leg)
	v.over(status != 0)
	inflight.Dec()
	legs.Metrics.leg(spanEncode, status, time.Since(sent))
	if err == nil {
		if err = s.media.NewEncodings().Add(s.items, answer); err != nil {
			failed = &encoderError{cause: "invalid", err: err}
		}
	} else {
		failed = encoderFailure(err)
	}
	if failed != nil {
		err = failed
	}
	describeLeg(span, status, err)
	span.End()
	return answer, status, failed
}

// sendEncoderLeg sends an encoder leg and reads its answer. status is 0 if none came.
func (legs *Legs) sendEncoderLeg(ctx context.Context, engine transport.Engine, header http.Header, leg request.Payload) (answer []byte, status int, err error) {
	req, err := transport.NewBufferedLeg(ctx, engine.URL+pd.APIChat.Path(), header, leg.Segments, leg.Length)
	if err != nil {
		return nil, 0, fmt.Errorf("making the encoder leg: %w", err)
	}
	resp, err := engine.Transport.RoundTrip(req)
	if err != nil {
		return nil, 0, legs.prefillFailure(ctx, err)
	}
	defer resp.Body.Close()
	if answer, err = transport.ReadCapped(resp, maxPrefillAnswer); err != nil {
		return nil, resp.StatusCode, legs.prefillFailure(ctx, err)
	}
	if resp.StatusCode != http.StatusOK {
		final := resp.StatusCode == http.StatusBadRequest || resp.StatusCode == http.StatusRequestEntityTooLarge || resp.StatusCode == http.StatusUnprocessableEntity
		return nil, resp.StatusCode, &encoderError{cause: "status", final: final, err: fmt.Errorf("the encoder answered %s", resp.Status)}
	}
	return answer, resp.StatusCode, nil
}

// encoderFailure names the cause of an encoder leg's failure.
func encoderFailure(err error) *encoderError {
	var failed *encoderError
	var leg *prefillError
	switch {
	case errors.As(err, &failed):
		return failed
	case errors.As(err, &leg):
		return &encoderError{cause: leg.cause, err: leg.err}
	}
	return &encoderError{cause: "denied", err: pd.AsRefusal(err).Cause}
}
