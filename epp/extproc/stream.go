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

// stream is one gRPC stream: one HTTP request, or the accountant's view of it. Only its handler accesses it, except for the fields
// that mu guards.
type stream struct {
	s      *Server
	grpc   procv3.ExternalProcessor_ProcessServer
	filter filter
	modes  modes
	began  time.Time
	begun  bool // the first frame has been read

	request  request
	response response

	reservation *epp.Reservation // of this request; nil if there is none, or another stream has it
	outcome     epp.Outcome
	reported    bool        // observers will be told the outcome
	dismissed   atomic.Bool // the server ended the stream before the answer's end: the outcome is not known

	mu       sync.Mutex // locked while sending; guards the fields below
	deadline deadline
	evicted  *pd.Refusal // why the request was ended early; nil if it was not
	over     bool        // the handler returns: nothing may be sent any more
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

// broken returns the handler's result for a stream that can no longer be read, or that a message cannot be sent on.
func (st *stream) broken(err error) error {
	cause := causeOf(err)
	if cause == "" {
		return nil
	}
	st.s.metrics.violation(cause)
	st.s.deps.Log.Debug("ext-proc stream broken", "cause", cause, "error", err)
	return err
}

// step handles one frame. done reports that the stream needs no further frames.
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
	return st.violation("unknown-frame", "a frame of unknown kind")
}

// violation ends a stream that violates the protocol.
func (st *stream) violation(cause, what string) (bool, error) {
	st.s.metrics.violation(cause)
	st.s.deps.Log.Debug("ext-proc protocol violation", "filter", st.filter.String(), "cause", cause)
	return true, status.Error(codes.InvalidArgument, "ext_proc protocol: "+what)
}

// send sends one message. The stream is done if that fails.
func (st *stream) send(m *procv3.ProcessingResponse) (done bool, err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	switch err := st.grpc.Send(m); {
	case err == nil:
		return false, nil
	case st.grpc.Context().Err() != nil: // the gateway has ended the stream: any error is a consequence
		return true, nil
	default:
		return true, st.broken(err)
	}
}

// sendBody sends a body in parts of the slices it arrived in. end marks the last part.
func (st *stream) sendBody(toRequest bool, segments [][]byte, end bool) (done bool, err error) {
	if len(segments) == 0 && end { // the end needs a frame
		return st.sendBodyPart(toRequest, nil, true)
	}
	for i, rest := range segments {
		for len(rest) > 0 && !done && err == nil {
			part := rest[:min(len(rest), maxFrame)]
			rest = rest[len(part):]
			done, err = st.sendBodyPart(toRequest, part, end && len(rest) == 0 && i == len(segments)-1)
		}
	}
	return done, err
}

// sendBodyPart sends a part of a body that fits into one message. The last message of an answer also has what reporters say.
func (st *stream) sendBodyPart(toRequest bool, part []byte, end bool) (done bool, err error) {
	m := newBodyAnswer(toRequest, part, end)
	if end && !toRequest {
		m = st.tell(m, false)
	}
	return st.send(m)
}
