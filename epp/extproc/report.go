package extproc

import (
	"mime"
	"strings"

	procv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tandem-serving/tandem/epp"
	"github.com/tandem-serving/tandem/pd/body"
)

// This file reports the token counts of answers to the gateway, where the configuration has reporters. The sidecar tells the counts
// in a header or a trailer; with another vendor's sidecar they are read from the answer, if the gateway sends it.

// counts collects the token counts of an answer whose body passes.
type counts struct {
	reader body.UsageReader
	events *body.Events // nil: the answer is one JSON document, or gRPC
	grpc   *grpcCounts  // nil: the answer is not gRPC
	found  body.Usage   // in the events so far
	broken bool         // the answer cannot be read
}

// readable reports whether this package can read an answer's body, and whether that is a stream of events.
func readable(r report) (events, ok bool) {
	if coding := valueOf(r.coding); coding != "" && coding != "identity" {
		return false, false
	}
	media, _, err := mime.ParseMediaType(valueOf(r.media))
	events = media == "text/event-stream"
	return events, err == nil && (events || media == "application/json" || strings.HasSuffix(media, "+json"))
}

// reporters returns those of the configuration that picked for the request, none if this is not the stream that sees the answer.
func (st *stream) reporters() []epp.Reporter {
	d := st.outcome.Decision
	if d == nil || d.AnswerPlugins == nil || st.filter == filterPicker || st.response.told {
		return nil
	}
	return d.AnswerPlugins.Reporters
}

// startCounts prepares to read the token counts of the answer's body.
func (st *stream) startCounts(r report) {
	if st.modes.noResponseBody() || len(st.reporters()) == 0 || st.outcome.Result != nil {
		return
	}
	if api := st.request.head.api; api.GRPC() {
		st.response.counts = &counts{grpc: newGRPCCounts(api)}
		return
	}
	events, ok := readable(r)
	if !ok {
		return
	}
	c := &counts{found: body.NoUsage}
	if c.reader.Reset(); events {
		c.events = new(body.Events)
	}
	st.response.counts = c
}

// write reads a part of the body.
func (c *counts) write(part []byte) {
	if c == nil || c.broken {
		return
	}
	var err error
	switch {
	case c.grpc != nil:
		err = c.grpc.message.Write(part)
	case c.events == nil:
		_, err = c.reader.Write(part)
	default:
		err = c.events.Feed(part, func(e body.Event) error {
			if u, ok := c.reader.Event(e.Data); ok {
				c.found = c.found.Merge(u)
			}
			return nil
		})
	}
	c.broken = err != nil
}

// usage returns the counts; ok is false if none are known.
func (c *counts) usage() (u body.Usage, ok bool) {
	switch {
	case c == nil:
		return body.NoUsage, false
	case c.grpc != nil:
		return c.grpc.found, c.grpc.found != body.NoUsage
	case c.events == nil:
		return c.reader.Usage()
	}
	return c.found, c.found != body.NoUsage
}

// usage returns the token counts of the answer; ok is false if they are not known.
func (st *stream) usage() (u body.Usage, ok bool) {
	if r := st.outcome.Result; r != nil {
		u = body.Usage{Prompt: r.Prompt, Cached: r.Cached, Completion: r.Completion}
		return u, u != body.NoUsage
	}
	return st.response.counts.usage()
}

// tell adds what reporters say about the answer to a message, once, and returns the message. shared says that other streams send the
// message too, so that the result is another one if it changes.
func (st *stream) tell(m *procv3.ProcessingResponse, shared bool) *procv3.ProcessingResponse {
	reporters := st.reporters()
	if len(reporters) == 0 {
		return m
	}
	u, ok := st.usage()
	if !ok {
		return m
	}
	st.response.told = true
	metadata := &structpb.Struct{Fields: make(map[string]*structpb.Value)}
	for _, r := range reporters {
		r.Report(u, func(namespace, key string, value float64) {
			in := metadata.Fields[namespace]
			if in == nil {
				in = structpb.NewStructValue(&structpb.Struct{Fields: make(map[string]*structpb.Value)})
				metadata.Fields[namespace] = in
			}
			in.GetStructValue().Fields[key] = structpb.NewNumberValue(value)
		})
	}
	if len(metadata.Fields) == 0 {
		return m
	}
	if shared {
		m = &procv3.ProcessingResponse{Response: m.Response}
	}
	m.DynamicMetadata = metadata
	return m
}
