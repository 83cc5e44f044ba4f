package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tandem-serving/tandem/epp"
)

type frameStream = grpc.BidiStreamingClient[extproc.ProcessingRequest, extproc.ProcessingResponse]

// Stream is one ext-proc stream. One goroutine may send while another receives.
type Stream struct {
	filter Filter
	frames frameStream
	cancel context.CancelFunc
	order  order
	first  sync.Once
}

func newStream(f Filter, frames frameStream, cancel context.CancelFunc) *Stream {
	s := &Stream{filter: f, frames: frames, cancel: cancel}
	s.order.request.duplex, s.order.response.duplex = f.requestBody, f.responseBody
	return s
}

// RequestHead is the request line and the headers of an HTTP request.
type RequestHead struct {
	Method, Scheme, Authority string
	Path                      string // with the query
	Header                    http.Header
	// Subset is the gateway's hint that only these endpoints (ip:port) are allowed; nil = no hint.
	Subset []string
}

// ResponseHead is the status and the headers of an HTTP answer.
type ResponseHead struct {
	Status int
	Header http.Header
	Served string // ip:port of the endpoint that answered
}

// RequestHeaders sends the request's head. end says that the request has no body.
func (s *Stream) RequestHeaders(h RequestHead, end bool) error {
	pseudo := []Field{{Name: ":authority", Value: h.Authority}, {Name: ":path", Value: h.Path}, {Name: ":method", Value: h.Method},
		{Name: ":scheme", Value: h.Scheme}}
	frame := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extproc.HttpHeaders{Headers: pairs(pseudo, h.Header), EndOfStream: end}}}
	if h.Subset != nil {
		addresses := make([]any, len(h.Subset))
		for i, a := range h.Subset {
			addresses[i] = a
		}
		if err := setMetadata(frame, epp.NamespaceSubset, epp.HeaderSubset, addresses); err != nil {
			return err
		}
	}
	return s.send(frame, func(o *order) error { return o.request.sendHeaders(end) })
}

// RequestBody sends a chunk of the request's body. The caller may reuse the chunk afterwards. end says that it is the last.
func (s *Stream) RequestBody(chunk []byte, end bool) error {
	frame := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestBody{
		RequestBody: &extproc.HttpBody{Body: chunk, EndOfStream: end}}}
	return s.send(frame, func(o *order) error { return o.request.sendBody(end) })
}

// RequestTrailers sends the request's trailers, which end it in place of the last chunk.
func (s *Stream) RequestTrailers(h http.Header) error {
	frame := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_RequestTrailers{
		RequestTrailers: &extproc.HttpTrailers{Trailers: pairs(nil, h)}}}
	return s.send(frame, func(o *order) error { return o.request.sendTrailers() })
}

// ResponseHeaders sends the answer's head. end says that the answer has no body. Picker streams must not call it.
func (s *Stream) ResponseHeaders(h ResponseHead, end bool) error {
	pseudo := []Field{{Name: ":status", Value: strconv.Itoa(h.Status)}}
	frame := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extproc.HttpHeaders{Headers: pairs(pseudo, h.Header), EndOfStream: end}}}
	if h.Served != "" {
		if err := setMetadata(frame, epp.NamespaceLB, epp.HeaderServed, h.Served); err != nil {
			return err
		}
	}
	return s.send(frame, func(o *order) error { return o.response.sendHeaders(end) })
}

// ResponseBody sends a chunk of the answer's body. Only Duplex streams may call it.
func (s *Stream) ResponseBody(chunk []byte, end bool) error {
	frame := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseBody{
		ResponseBody: &extproc.HttpBody{Body: chunk, EndOfStream: end}}}
	return s.send(frame, func(o *order) error { return o.response.sendBody(end) })
}

// ResponseTrailers sends the answer's trailers.
func (s *Stream) ResponseTrailers(h http.Header) error {
	frame := &extproc.ProcessingRequest{Request: &extproc.ProcessingRequest_ResponseTrailers{
		ResponseTrailers: &extproc.HttpTrailers{Trailers: pairs(nil, h)}}}
	return s.send(frame, func(o *order) error { return o.response.sendTrailers() })
}

func setMetadata(frame *extproc.ProcessingRequest, namespace, key string, value any) error {
	fields, err := structpb.NewStruct(map[string]any{key: value})
	if err != nil {
		return fmt.Errorf("writing the metadata %s: %w", key, err)
	}
	frame.MetadataContext = &core.Metadata{FilterMetadata: map[string]*structpb.Struct{namespace: fields}}
	return nil
}

// send sends a frame if the order allows it. After the server has ended the stream it returns io.EOF, and Recv returns the reason.
func (s *Stream) send(frame *extproc.ProcessingRequest, note func(*order) error) error {
	s.order.mu.Lock()
	err := note(&s.order)
	s.order.mu.Unlock()
	if err != nil {
		return fmt.Errorf("sending an ext-proc frame: %w", err)
	}
	s.first.Do(func() {
		frame.ProtocolConfig = &extproc.ProtocolConfiguration{
			RequestBodyMode: sendMode(s.filter.requestBody), ResponseBodyMode: sendMode(s.filter.responseBody)}
	})
	switch err := s.frames.Send(frame); err {
	case nil, io.EOF:
		return err
	default:
		return fmt.Errorf("sending an ext-proc frame: %w", err)
	}
}

// Recv returns the server's next answer. The error is io.EOF if the server ended the stream normally, wraps ErrSpurious for an
// answer that Envoy would refuse, and is the connection's error otherwise.
func (s *Stream) Recv() (Answer, error) {
	for {
		frame, err := s.frames.Recv()
		if err == io.EOF {
			return Answer{}, err
		} else if err != nil {
			return Answer{}, fmt.Errorf("receiving an ext-proc answer: %w", err)
		}
		s.order.mu.Lock()
		a, skip, err := s.order.take(frame)
		s.order.mu.Unlock()
		if !skip || err != nil {
			return a, err
		}
	}
}

// RequestDone reports whether the complete request was answered. If the server ends the stream earlier, bytes of it are lost.
func (s *Stream) RequestDone() bool {
	s.order.mu.Lock()
	defer s.order.mu.Unlock()
	return s.order.request.complete()
}

// Close ends the stream, as Envoy does when the HTTP stream has ended. It may be called at any time, and again.
func (s *Stream) Close() {
	_ = s.frames.CloseSend() // fails only on a stream that has ended
	s.cancel()
}
