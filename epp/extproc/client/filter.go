package client

import extproc "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

// MetadataFilter is the gRPC metadata that says which of the two filters a stream belongs to. Without it, the gateway has a single
// filter.
const MetadataFilter = "x-tandem-filter"

// Mark is the value of MetadataFilter.
type Mark string

// The marks.
const (
	MarkNone   Mark = ""
	MarkPicker Mark = "picker"
	MarkAcct   Mark = "acct"
)

// Filter is the configuration of a data plane's ext-proc filter: the frames that it sends.
type Filter struct {
	mark         Mark
	requestBody  bool // FULL_DUPLEX_STREAMED, else NONE
	responseBody bool // as well
	response     bool // response headers and trailers SEND, else SKIP
}

// Picker returns the first filter of the pair. It sends only the request, so its server may die during the answer.
func Picker() Filter { return Filter{mark: MarkPicker, requestBody: true} }

// Acct returns the second filter of the pair. It sends all headers and trailers but no body, and its stream lives as long as the HTTP stream.
func Acct() Filter { return Filter{mark: MarkAcct, response: true} }

// Single returns the single filter that sends the request, and the headers and trailers of the answer.
func Single() Filter { return Filter{requestBody: true, response: true} }

// Duplex returns the single filter as llm-d's charts configure it: it also sends the answer's body.
func Duplex() Filter { return Filter{requestBody: true, responseBody: true, response: true} }

func sendMode(duplex bool) extproc.ProcessingMode_BodySendMode {
	if duplex {
		return extproc.ProcessingMode_FULL_DUPLEX_STREAMED
	}
	return extproc.ProcessingMode_NONE
}
