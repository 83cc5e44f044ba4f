package extproc

import (
	"sync"
	"sync/atomic"
	"time"

	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd"
)

// stream is one gRPC stream: one HTTP request, or the accountant's view of it. Its handler is the only goroutine that
// touches it, but for what mu guards.
type stream struct {
	s      *Server
	grpc   procv3.ExternalProcessor_ProcessServer
	filter filter
	modes  modes
	began  time.Time
	begun  bool // the first frame was read

	request  request
	response response

	reservation *epp.Reservation // charged for this request; nil if it is not, or not by this stream
	outcome     epp.Outcome
	decided     bool        // the outcome is to be told
	dismissed   atomic.Bool // the server did not want to wait for the answer: what became of the request is not known

	mu       sync.Mutex // held while sending, and guards deadline
	deadline deadline
}

// run reads frames until the request is over.
func (st *stream) run() error {
	for {
		f, err := st.grpc.Recv()
		if err != nil {
			return st.broken(err)
		}
		if done, err := st.step(f); done || err != nil {
			return err
		}
	}
}

// broken gives what the handler returns when the stream cannot be read any more, or a message cannot be sent.
func (st *stream) broken(err error) error {
	cause := causeOf(err)
	if cause == "" {
		return nil
	}
	st.s.metrics.violation(cause)
	st.s.deps.Log.Debug("ext-proc stream broken", "cause", cause, "error", err)
	return err
}

// step handles one frame. done tells that nothing more is expected of this stream.
func (st *stream) step(f *procv3.ProcessingRequest) (done bool, err error) {
	if !st.begun {
		st.begun = true
		if st.modes, err = modesOf(st.filter, f); err != nil {
			return true, st.s.unserved("processing-mode", err)
		}
	}
	switch part := f.GetRequest().(type) {
	case *procv3.ProcessingRequest_RequestHeaders:
		return st.requestHeaders(f, part.RequestHeaders)
	case *procv3.ProcessingRequest_RequestBody:
		return st.requestBody(f, part.RequestBody)
	case *procv3.ProcessingRequest_RequestTrailers:
		return st.requestTrailers(f)
	case *procv3.ProcessingRequest_ResponseHeaders:
		return st.responseHeaders(f, part.ResponseHeaders)
	case *procv3.ProcessingRequest_ResponseBody:
		return st.responseBody(part.ResponseBody)
	case *procv3.ProcessingRequest_ResponseTrailers:
		return st.responseTrailers(part.ResponseTrailers)
	}
	return st.violation("unknown-frame", "a frame of no known kind")
}

// violation ends a stream that does not keep to the protocol.
func (st *stream) violation(cause, what string) (bool, error) {
	st.s.metrics.violation(cause)
	st.s.deps.Log.Debug("ext-proc protocol violation", "filter", st.filter.String(), "cause", cause)
	return true, status.Error(codes.InvalidArgument, "ext_proc protocol: "+what)
}

// send sends one message. The stream is done if it cannot be sent.
func (st *stream) send(m *procv3.ProcessingResponse) (done bool, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch err := st.grpc.Send(m); {
	case err == nil:
		return false, nil
	case st.grpc.Context().Err() != nil: // nobody listens any more, whatever the error
		return true, nil
	default:
		return true, st.broken(err)
	}
}

// sendBody sends a body, in parts of the slices it came in. end marks the last one.
func (st *stream) sendBody(toRequest bool, segments [][]byte, end bool) (done bool, err error) {
	if len(segments) == 0 && end { // an end needs a frame
		return st.send(newBodyAnswer(toRequest, nil, true))
	}
	for i, rest := range segments {
		for len(rest) > 0 && !done && err == nil {
			part := rest[:min(len(rest), maxFrame)]
			rest = rest[len(part):]
			done, err = st.send(newBodyAnswer(toRequest, part, end && len(rest) == 0 && i == len(segments)-1))
		}
	}
	return done, err
}

// dismiss ends the stream while its handler waits for frames of the answer. A frame that is being answered just now is
// cut off, which Envoy takes for an answer that changes nothing.
func (st *stream) dismiss() {
	st.dismissed.Store(true)
	finish(st.grpc)
}

// close ends the request, whatever ended the stream: it runs once, as the last thing of the handler.
func (st *stream) close() {
	st.s.unrest(st)
	st.mu.Lock()
	st.deadline.stop()
	overdue := st.deadline.overdue
	st.mu.Unlock()
	st.dropReader()
	if st.reservation != nil {
		st.reservation.End()
	}
	if overdue != nil {
		st.refused(overdue)
	}
	if st.decided && !st.dismissed.Load() {
		st.tell()
	}
	st.s.metrics.streams[st.filter].Dec()
}

// tell tells the outcome.
func (st *stream) tell() {
	o := &st.outcome
	o.Duration = time.Since(st.began)
	if st.request.head.generates() {
		st.s.metrics.request(o)
	}
	for _, observer := range st.s.deps.Observers {
		observer.Observe(o)
	}
}

// refused notes the outcome of a request that was answered from here.
func (st *stream) refused(r *pd.Refusal) {
	d := r.Result()
	st.decided = true
	st.outcome.Happened, st.outcome.Status, st.outcome.Immediate = &d, r.Status(), true
}
