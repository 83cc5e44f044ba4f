package client

import extproc "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"

// MetadataFilter is the gRPC metadata by which a stream says which of the two filters it belongs to. A stream without is
// the only one.
const MetadataFilter = "x-tandem-filter"

// Mark is the value of MetadataFilter.
type Mark string

// The marks.
const (
	MarkNone   Mark = ""
	MarkPicker Mark = "picker"
	MarkAcct   Mark = "acct"
)

// Filter is how a data plane's ext-proc filter is configured: which frames it sends.
type Filter struct {
	mark         Mark
	requestBody  bool // FULL_DUPLEX_STREAMED, else NONE
	responseBody bool // as well
	response     bool // response headers and trailers SEND, else SKIP
}

// Picker is the first of the pair: it sees the request and nothing of the answer, so its server may die during the answer.
func Picker() Filter { return Filter{mark: MarkPicker, requestBody: true} }

// Acct is the second of the pair: it sees all headers and trailers and no body, and lives as long as the HTTP stream.
func Acct() Filter { return Filter{mark: MarkAcct, response: true} }

// Single is the one filter that does both.
func Single() Filter { return Filter{requestBody: true, response: true} }

// Duplex is the one filter as llm-d's charts configure it: the answer's body goes through the picker too.
func Duplex() Filter { return Filter{requestBody: true, responseBody: true, response: true} }

func sendMode(duplex bool) extproc.ProcessingMode_BodySendMode {
	if duplex {
		return extproc.ProcessingMode_FULL_DUPLEX_STREAMED
	}
	return extproc.ProcessingMode_NONE
}
