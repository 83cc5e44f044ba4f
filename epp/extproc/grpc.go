package extproc

import (
	"bytes"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/message"
)

// This file reads the token counts in the answers to calls of gRPC.

// The fields of answers that are read.
const (
	wantPrompt = iota
	wantCompletion
	wantCached
	wantPart // a message around others
	wantData
)

// countsAt returns the fields of a message of vLLM with the counts from a field number on.
func countsAt(first int) []message.Field {
	var fields []message.Field
	for want := wantPrompt; want <= wantCached; want++ {
		fields = append(fields, message.Field{Number: message.FieldNumber(first + want), Kind: message.Number, Want: want})
	}
	return fields
}

// answerData is the data of google.api.HttpBody.
var answerData = []message.Field{{Number: 2, Kind: message.Bytes, Want: wantData}}

// answerFields are the fields of each API's answer.
var answerFields = map[pd.API][]message.Field{
	pd.APIVLLMGenerate: {
		{Number: 1, Kind: message.Nested, Want: wantPart, Fields: countsAt(2)}, // GenerateStreamChunk
		{Number: 2, Kind: message.Nested, Want: wantPart, Fields: countsAt(3)}, // GenerateComplete
	},
	pd.APIVLLMEmbed:    {{Number: 2, Kind: message.Number, Want: wantPrompt}},
	pd.APIVertexChat:   answerData,
	pd.APIVertexRaw:    answerData,
	pd.APIVertexStream: answerData,
}

// maxMessage is longer than any message of an answer with token counts, log probabilities included (bytes).
const maxMessage = 64 << 20

// grpcCounts collects the counts of a call's answer. The counts of a stream grow, so the largest ones count.
type grpcCounts struct {
	message message.Reader
	found   body.Usage

	// What Vertex AI's messages carry is a JSON document each, or a stream of events all together.
	json   body.UsageReader
	events body.Events
	state  dataState
}

type dataState uint8

const (
	dataBegins dataState = iota
	dataJSON
	dataEvents
	dataUnread
)

func newGRPCCounts(api pd.API) *grpcCounts {
	c := &grpcCounts{found: body.NoUsage}
	c.message.Reset(answerFields[api], maxMessage, c)
	return c
}

// Begin implements message.Sink.
func (c *grpcCounts) Begin(want int) error {
	if want == wantData {
		c.state = dataBegins
	}
	return nil
}

// Number implements message.Sink.
func (c *grpcCounts) Number(want int, v uint64) error {
	n := int64(uint32(v))
	switch want {
	case wantPrompt:
		c.found.Prompt = max(c.found.Prompt, n)
	case wantCompletion:
		c.found.Completion = max(c.found.Completion, n)
	case wantCached:
		c.found.Cached = max(c.found.Cached, n)
	}
	return nil
}

// Piece implements message.Sink.
func (c *grpcCounts) Piece(_ int, piece []byte, last bool) error {
	if c.state == dataBegins && len(piece) > 0 {
		c.state = dataEvents
		if bytes.HasPrefix(bytes.TrimLeft(piece, " \t\r\n"), []byte("{")) {
			c.state = dataJSON
			c.json.Reset()
		}
	}
	switch c.state {
	case dataJSON:
		if _, err := c.json.Write(piece); err != nil {
			c.state = dataUnread
		} else if u, ok := c.json.Usage(); ok && last {
			c.found = c.found.Merge(u)
		}
	case dataEvents:
		return c.events.Feed(piece, func(e body.Event) error {
			if u, ok := c.json.Event(e.Data); ok {
				c.found = c.found.Merge(u)
			}
			return nil
		})
	}
	return nil
}
