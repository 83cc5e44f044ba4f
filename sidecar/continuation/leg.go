package continuation

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/tandem-serving/tandem/pd"
	"github.com/tandem-serving/tandem/pd/body"
	"github.com/tandem-serving/tandem/pd/request"
)

// Refusal returns why the stream cannot go on at another engine from here; "" = it can.
func (s *Stream) Refusal() Refusal {
	switch {
	case s.why != "":
		return s.why
	case s.prompt == nil:
		return Unreadable
	case s.parses() && s.of.whole == nil, s.of.api == pd.APIChat && !s.plain && !s.parses():
		return Parsed
	case s.parses() && s.of.stopped:
		return Stop
	case s.of.limit >= 0 && s.of.limit <= s.count && !s.finished:
		return Unreadable
	}
	return ""
}

// MayParse reports whether the stream cannot go on from its ids if the engine parses what it generates.
func (s *Stream) MayParse() bool {
	return s.of.api == pd.APIChat && (s.of.whole == nil || s.of.stopped)
}

// Decided reports whether the stream of a chat can go on from its ids. known is false until the engine's first text says whether it parses what
// it generates.
func (s *Stream) Decided() (can, known bool) {
	switch {
	case s.why != "" || s.parses() && s.MayParse():
		return false, true
	case s.plain || s.parses():
		return true, true
	}
	return false, false
}

// OnlyStrips says that the stream does not go on from its ids. Event strips the events still.
func (s *Stream) OnlyStrips() {
	s.giveUp(Parsed)
	s.dropAll()
}

// End returns the end of a stream that has broken off after all else had been sent; nil if it lacks more.
func (s *Stream) End() []byte {
	if s.why == "" && s.finished && (s.counted || !s.of.usage) {
		return []byte("data: [DONE]\n\n")
	}
	return nil
}

// Ended reports whether the finish reason was sent: what lacks comes at once.
func (s *Stream) Ended() bool { return s.finished }

// NeedsModelLength reports whether Leg needs the model's length. A completion without a limit would end after 16 tokens.
func (s *Stream) NeedsModelLength() bool { return s.of.limit < 0 && !s.finished && s.stopped == nil }

// Leg makes the request with which another engine goes on, whose model has this length in tokens. If it does, Moved must be called
// before the next Event.
func (s *Stream) Leg(modelLength int64) request.Payload {
	sent, limit, least := s.sent, s.of.limit-s.count, max(0, s.of.least-s.count)
	if s.of.limit < 0 {
		limit = modelLength // which the engine shortens by the prompt
	}
	switch { // the last token is generated again, for the usage and the fingerprint of the engine
	case s.finished:
		sent, limit, least = s.sent[:s.last], 1, 0
	case s.stopped != nil:
		sent, limit, least = slices.Concat(s.sent, s.heldIDs, s.stopped.before()), 1, 0
	}
	if len(s.prompt) == 0 {
		sent = bytes.TrimPrefix(sent, comma)
	}
	tail := strconv.AppendInt([]byte(`],"max_tokens":`), limit, 10)
	if least > 0 {
		tail = strconv.AppendInt(append(tail, `,"min_tokens":`...), least, 10)
	}
	if s.of.options != nil {
		tail = append(append(tail, `,"stream_options":`...), s.of.options...)
	}
	tail = append(append(append(tail, `,"stream":true,"return_token_ids":true`...), s.of.rest...), '}')
	var p request.Payload
	for _, segment := range [][]byte{[]byte(`{"prompt":[`), s.prompt, sent, tail} {
		if len(segment) > 0 {
			p.Segments = append(p.Segments, segment)
			p.Length += int64(len(segment))
		}
	}
	return p
}

// Moved says that another engine goes on: the next events are its answer to the last leg. Events that were held back are dropped, because
// it generates their tokens again.
func (s *Stream) Moved() {
	s.moves++
	s.follow, s.swallows, s.parsed = true, s.finished, s.parses()
	for n := len(s.chunks); n > 0 && s.chunks[n-1].at >= s.count; n = len(s.chunks) { // of those that were held
		s.chunks = s.chunks[:n-1]
	}
	s.offset = textOffset(s.scored)
	s.held, s.heldIDs, s.heldN = s.held[:0], s.heldIDs[:0], 0
	s.asked = inquiry{}
	switch {
	case s.of.stops == nil:
	case s.of.stops.include:
		s.search = s.recent.searched(s.of.stops)
	case s.count == 0:
		s.search = stopSearch{}
	}
}

// Moves returns how often another engine has gone on.
func (s *Stream) Moves() int { return s.moves }

var lengthTable = body.NewTable(body.Want{Path: "data.*.max_model_len"})

// ModelLength reads the model's length in tokens from an engine's answer to /v1/models. ok is false if it does not say it.
func ModelLength(models []byte) (tokens int64, ok bool) {
	var scan body.Scanner
	if scan.Scan(lengthTable, body.Limits{}, models) != nil {
		return 0, false
	}
	for _, m := range scan.Members() {
		if n, err := strconv.ParseInt(string(models[m.Value.Start:m.Value.End]), 10, 64); err == nil && n > 0 {
			return n, true
		}
	}
	return 0, false
}
